"""Efficiencies: every device has all of them with their sources, and may have its own."""

import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from sandtable.cluster import device_names, load, load_device
from sandtable.cluster.generations import generation_names
from sandtable.errors import ClusterError

CATALOGUE = files("sandtable.cluster.catalogue")
MACHINE = 'title = "one"\ngpus_per_node = 1\nsource = "the box"\nstatus = "nominal"\n[device]\n'
DEVICE = (CATALOGUE / "devices" / "a100-sxm4-80gb.toml").read_text(encoding="utf-8")
OWN_TABLE = """
[streaming]
kernel_us = 5.0
elementwise_share = 0.5
normalisation_share = 0.5
indexing_share = 0.25
source = "measured here"
status = "measured"
"""


def described(tmp_path: Path, device: str) -> Path:
    """Write a machine file that describes its own device."""
    lines = [line.replace("[", "[device.", 1) if line.startswith("[") else line for line in device.splitlines()]
    path = tmp_path / "mine.toml"
    path.write_text(MACHINE + "\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", generation_names())
def test_every_table_of_a_generation_names_its_source_and_status(name: str) -> None:
    entry = tomllib.loads((CATALOGUE / "generations" / f"{name}.toml").read_text(encoding="utf-8"))
    assert set(entry) == {"gemm", "attention", "convolution", "streaming", "host"}
    assert all(table["source"] and table["status"] in ("measured", "fitted", "nominal") for table in entry.values())


@pytest.mark.parametrize("name", device_names())
def test_every_device_names_its_generation(name: str) -> None:
    assert load_device(name).efficiency.generation != "generic"


def test_numbers_come_in_the_units_of_their_names() -> None:
    host = load_device("a100-sxm4-80gb").efficiency.host
    assert host.launch_latency_ns == 5000
    assert host.link_bytes_per_s == 24e9


def test_a_device_may_have_its_own_table(tmp_path: Path) -> None:
    device = load(described(tmp_path, DEVICE + OWN_TABLE)).device
    assert device.efficiency.streaming.kernel_ns == 5000
    assert device.efficiency.streaming.status == "measured"
    assert device.efficiency.gemm == load_device("a100-sxm4-80gb").efficiency.gemm


@pytest.mark.parametrize(("vendor", "generation"), [("nvidia", "generic"), ("cpu", "cpu")])
def test_a_device_of_no_generation_has_usual_figures(tmp_path: Path, vendor: str, generation: str) -> None:
    text = DEVICE.replace('generation = "ampere"\n', "").replace('vendor = "nvidia"', f'vendor = "{vendor}"')
    assert load(described(tmp_path, text)).device.efficiency.generation == generation


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("elementwise_share = 0.5", "elementwise_share = 1.5", "device.streaming.elementwise_share must be less than"),
        ("kernel_us = 5.0", "kernel_us = -1.0", "device.streaming.kernel_us must be greater than or equal to 0"),
        ("kernel_us = 5.0", "", "device.streaming.kernel_us must be given, but is missing; it is microseconds"),
        ("kernel_us", "kernel_ms", r"device.streaming.kernel_ms must be a known key; did you mean 'kernel_us'\?"),
        ('status = "measured"', 'status = "guessed"', "device.streaming.status must be 'measured', 'fitted' or"),
    ],
)
def test_a_mistake_in_a_table_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in OWN_TABLE
    with pytest.raises(ClusterError, match=message):
        load(described(tmp_path, DEVICE + OWN_TABLE.replace(old, new)))


def test_an_unknown_generation_guesses(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="unknown generation 'amper'; did you mean 'ampere'"):
        load(described(tmp_path, DEVICE.replace('"ampere"', '"amper"')))
