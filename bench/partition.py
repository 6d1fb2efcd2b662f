"""Check the partitioner against published splits and exhaustive search, and time it on a large model.

    python bench/partition.py
    python bench/partition.py --quick      # 100 random models, 200 layers

The profiles are those of PipeDream's authors (validation/profiles: VGG-16, ResNet-50 and Inception-v3 with 128 images,
AlexNet with 256). Some runs of their papers used fewer images; times and activations are scaled accordingly, weights
are not. One reported split, 9-5-1-1, was found for another GPU and cannot follow from these times: it would be 1.55
times as slow as 15-1. Random models have 1 to 6 layers on 1 to 5 machines, and some layers cost nothing, send nothing
or have no weights; the benchmark tries every split. The last line is a JSON object:

reported       one row per split that a paper reports: model, images, machines, gbit, reported, found
as_reported    number of rows whose split equals the reported one
profiled       by model, as profiled: the split for 8 and 16 machines with 10 and 25 Gbit/s
random_models, differ   number of random models, and of those where exhaustive search found a faster split
layers, machines, seconds   size of a random model, and the time to split it
"""

import argparse
import itertools
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sandtable.pipeline_profile import LayerProfile
from sandtable.planner import Chain, Level, partition, read_profile
from sandtable.units import GBIT_BYTES

PROFILES = Path(__file__).parents[1] / "validation" / "profiles"
PROFILED = {"vgg16": 128, "resnet50": 128, "alexnet": 256, "inception_v3": 128}
"""Images per minibatch of the profile."""

REPORTED = [
    # Harlap et al. 2018, table 1: one GPU per machine, 32 images; 25 Gbit/s is its cluster A, 10 Gbit/s cluster B.
    ("vgg16", 32, 8, 25, "7-1"),
    ("vgg16", 32, 8, 10, "7-1"),
    ("vgg16", 32, 16, 25, "9-5-1-1"),
    ("inception_v3", 32, 8, 25, "8"),
    ("inception_v3", 32, 8, 10, "7-1"),
    # Narayanan et al. 2019, table 1: sixteen GPUs in four machines with 10 Gbit/s, here sixteen machines.
    ("vgg16", 64, 16, 10, "15-1"),
    ("resnet50", 128, 16, 10, "16"),
    ("alexnet", 256, 16, 10, "15-1"),
]


def main() -> None:
    """Print every comparison, then everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 random models, 200 layers")
    is_quick = parser.parse_args().quick
    rows = [_reported(*row) for row in REPORTED]
    profiled = {model: _profiled(model) for model in PROFILED}
    num_models, num_layers = (100, 200) if is_quick else (1000, 1000)
    differ = sum(_differs(random.Random(number)) for number in range(num_models))
    print(f"{num_models} random models against exhaustive search: {differ} differ")
    seconds = _time_of(num_layers, machines=64)
    print(f"{num_layers} layers on 64 machines: {seconds:.2f} s")
    data = {
        "reported": rows,
        "as_reported": sum(row["reported"] == row["found"] for row in rows),
        "profiled": profiled,
        "random_models": num_models,
        "differ": differ,
        "layers": num_layers,
        "machines": 64,
        "seconds": seconds,
    }
    print(json.dumps(data))


def _reported(model: str, images: int, machines: int, gbit: int, reported: str) -> dict[str, Any]:
    found = _split(model, images, machines, gbit)
    mark = "as reported" if found == reported else f"the paper reports {reported}"
    print(f"{model}, {images} images, {machines} machines, {gbit} Gbit/s: {found}, {mark}")
    return {
        "model": model,
        "images": images,
        "machines": machines,
        "gbit": gbit,
        "reported": reported,
        "found": found,
    }


def _profiled(model: str) -> dict[str, str]:
    sizes = itertools.product((8, 16), (10, 25))
    return {f"{machines} x {gbit} Gbit/s": _split(model, PROFILED[model], machines, gbit) for machines, gbit in sizes}


def _split(model: str, images: int, machines: int, gbit: int) -> str:
    chain = read_profile(PROFILES / f"{model}.json").scaled(images / PROFILED[model])
    return partition(chain, [Level(machines=machines, bandwidth_bytes_per_s=gbit * GBIT_BYTES)]).name


def _differs(numbers: random.Random) -> bool:
    """Return whether some split of a random model is faster than the partitioner's, or its predicted time is wrong."""
    chain = _random_chain(numbers, numbers.randint(1, 6))
    machines, bandwidth = numbers.randint(1, 5), numbers.choice((1, 10, 100)) * GBIT_BYTES
    found = partition(chain, [Level(machines=machines, bandwidth_bytes_per_s=bandwidth)])
    best_s = min(_slowest_s(chain, split, bandwidth) for split in _splits(len(chain), machines))
    chosen = [(stage.first, stage.last + 1, stage.replicas) for stage in found.stages]
    times = (found.seconds_per_minibatch, _slowest_s(chain, chosen, bandwidth))
    return any(abs(seconds - best_s) > 1e-12 * max(best_s, 1) for seconds in times)


def _splits(num_layers: int, machines: int) -> Iterator[list[tuple[int, int, int]]]:
    """Yield every way to cut the layers into stages and distribute all machines: (start, end, replicas) per stage."""
    for num_stages in range(1, min(num_layers, machines) + 1):
        for cuts in itertools.combinations(range(1, num_layers), num_stages - 1):
            for bars in itertools.combinations(range(1, machines), num_stages - 1):
                replicas = [after - before for before, after in itertools.pairwise((0, *bars, machines))]
                yield list(zip((0, *cuts), (*cuts, num_layers), replicas, strict=True))


def _slowest_s(chain: Chain, split: list[tuple[int, int, int]], bandwidth: float) -> float:
    """Return the time of the slowest stage or transfer, by the paper's formula."""
    worst_s = 0.0
    for start, end, replicas in split:
        part = chain.layers[start:end]
        sync_s = 4 * (replicas - 1) / replicas * sum(layer.weight_bytes for layer in part) / bandwidth
        crossing_s = 2 * chain.cut_bytes[start - 1] / bandwidth if start else 0.0
        worst_s = max(worst_s, max(sum(layer.seconds for layer in part), sync_s) / replicas, crossing_s)
    return worst_s


def _time_of(num_layers: int, *, machines: int) -> float:
    chain = _random_chain(random.Random(0), num_layers)
    start = time.perf_counter()
    partition(chain, [Level(machines=machines, bandwidth_bytes_per_s=10 * GBIT_BYTES)])
    return time.perf_counter() - start


def _random_chain(numbers: random.Random, num_layers: int) -> Chain:
    return Chain.of(
        LayerProfile(
            name=str(number),
            forward_s=numbers.choice((0.0, numbers.random())),
            backward_s=numbers.random(),
            activation_bytes=numbers.choice((0, numbers.randrange(10**8))),
            weight_bytes=numbers.choice((0, numbers.randrange(10**8))),
        )
        for number in range(num_layers)
    )


if __name__ == "__main__":
    main()
