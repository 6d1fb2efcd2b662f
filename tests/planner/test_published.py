"""The partitioner on the profiles that PipeDream's authors published: the splits that their papers report."""

from pathlib import Path

import pytest

from sandtable.planner import Level, partition, read_profile
from sandtable.units import GBIT_BYTES

PROFILES = Path(__file__).parents[2] / "validation" / "profiles"
PROFILED = {"vgg16": 128, "resnet50": 128, "alexnet": 256, "inception_v3": 128}
"""Images per minibatch of the profile."""


def split(model: str, images: int, machines: int, gbit: int) -> str:
    chain = read_profile(PROFILES / f"{model}.json").scaled(images / PROFILED[model])
    return partition(chain, [Level(machines=machines, bandwidth_bytes_per_s=gbit * GBIT_BYTES)]).name


@pytest.mark.parametrize(
    ("model", "machines", "gbit", "reported"),
    [
        ("vgg16", 8, 25, "7-1"),
        ("vgg16", 8, 10, "7-1"),
        ("inception_v3", 8, 25, "8"),
        ("inception_v3", 8, 10, "7-1"),
    ],
)
def test_splits_of_the_first_paper_with_its_32_images(model, machines, gbit, reported):
    assert split(model, 32, machines, gbit) == reported


@pytest.mark.parametrize(
    ("model", "images", "reported"), [("vgg16", 64, "15-1"), ("resnet50", 128, "16"), ("alexnet", 256, "15-1")]
)
def test_splits_of_the_second_paper_on_sixteen_devices(model, images, reported):
    assert split(model, images, 16, 10) == reported


@pytest.mark.parametrize("machines", [8, 16])
@pytest.mark.parametrize("gbit", [10, 25])
def test_resnet_50_is_best_trained_data_parallel(machines, gbit):
    assert split("resnet50", 128, machines, gbit) == str(machines)
