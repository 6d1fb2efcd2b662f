"""Profile files: per-layer profiles in the text form that PipeDream's profiler writes.

A layer is a line, an edge an indented one:

    node4 -- Conv2d(64, 64) -- forward_compute_time=11.5, backward_compute_time=23.1, ..., parameter_size=36928.0
        node4 -- node5

Times are milliseconds, sizes bytes; a layer with several outputs lists them as [1.0; 2.0]. The node called Input is the
data, which nobody computes.
"""

from os import PathLike
from pathlib import Path

from sandtable.errors import PlanError
from sandtable.plan.chain import Chain, Layer

__all__ = ["read_profile"]

_SEPARATOR = " -- "
_INPUT = "Input"


def read_profile(path: str | PathLike[str]) -> Chain:
    """The chain of layers that a profile file describes."""
    layers: list[Layer] = []
    edges: list[tuple[str, str]] = []
    inputs: set[str] = set()
    for number, line in enumerate(Path(path).read_text().splitlines(), start=1):
        parts = line.strip().split(_SEPARATOR)
        if not line.strip():
            continue
        try:
            if line[0].isspace():
                source, reader = parts
                edges.append((source, reader))
            elif parts[1] == _INPUT:
                inputs.add(parts[0])
            else:
                layers.append(_layer(*parts))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise PlanError(
                f"a line of a profile must be a layer or an edge, but {path}:{number} is '{line.strip()[:60]}'; "
                "give a graph.txt of PipeDream's profiler"
            ) from error
    layers.sort(key=lambda layer: _number(layer.name))
    return Chain.of_graph(layers, [edge for edge in edges if edge[0] not in inputs])


def _layer(node: str, _description: str, values: str) -> Layer:
    fields = dict(value.split("=") for value in values.split(", "))
    return Layer(
        name=node,
        forward_s=float(fields["forward_compute_time"]) / 1e3,
        backward_s=float(fields["backward_compute_time"]) / 1e3,
        activation_bytes=round(sum(float(part) for part in fields["activation_size"].strip("[]").split(";"))),
        weight_bytes=round(float(fields["parameter_size"])),
    )


def _number(node: str) -> int:
    return int("".join(letter for letter in node if letter.isdigit()) or 0)
