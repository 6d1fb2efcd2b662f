"""Profile files: what each layer of a model costs, in either of two forms.

`sandtable profile` writes JSON, with `"format": "sandtable-profile"`, `version`, `layers` and `edges`. PipeDream's own
profiler writes text, in which a layer is a line, an edge an indented one:

    node4 -- Conv2d(64, 64) -- forward_compute_time=11.5, backward_compute_time=23.1, ..., parameter_size=36928.0
        node4 -- node5

Times are milliseconds, sizes bytes; a layer with several outputs lists them as [1.0; 2.0]. The node called Input is the
data, which nobody computes.
"""

import json
from os import PathLike
from pathlib import Path
from typing import Any

from sandtable.errors import PlanError
from sandtable.plan.chain import Chain, Layer

__all__ = ["read_profile"]

FORMAT = "sandtable-profile"
VERSION = 1

_SEPARATOR = " -- "
_INPUT = "Input"


def read_profile(path: str | PathLike[str]) -> Chain:
    """The chain of layers that a profile file describes, whichever its form."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"a profile must be a file of text, but {path} cannot be read: {error}") from error
    return _of_json(text, path) if text.lstrip().startswith("{") else _of_text(text, path)


def _of_json(text: str, path: str | PathLike[str]) -> Chain:
    try:
        data: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlanError(f"a profile must be whole, but {path} is not JSON: {error}; profile the model again") from error
    found = (data.get("format"), data.get("version"))
    if found != (FORMAT, VERSION):
        raise PlanError(
            f"a profile must be a {FORMAT} of version {VERSION}, but {path} is {found[0]} of version {found[1]}; "
            "profile the model again with this version of sandtable"
        )
    try:
        names = ("name", "forward_s", "backward_s", "activation_bytes", "weight_bytes")
        layers = [
            Layer(**{**{name: each[name] for name in names}, "name": str(each["name"])}) for each in data["layers"]
        ]
        edges = [(str(source), str(reader)) for source, reader in data["edges"]]
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(
            f"every layer and edge of a profile must be whole, but in {path} one is not: {error!r}; "
            "profile the model again"
        ) from error
    return Chain.of_graph(layers, edges)


def _of_text(text: str, path: str | PathLike[str]) -> Chain:
    layers: list[Layer] = []
    edges: list[tuple[str, str]] = []
    inputs: set[str] = set()
    for number, line in enumerate(text.splitlines(), start=1):
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
        except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
            raise PlanError(
                f"a line of a profile must be a layer or an edge, but {path}:{number} is '{line.strip()[:60]}'; "
                "give a file of `sandtable profile`, or a graph.txt of PipeDream's profiler"
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
    return int("".join(letter for letter in node if letter.isdecimal()) or 0)
