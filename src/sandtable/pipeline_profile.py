"""Pipeline profiles: what every layer of a model costs, and the file that holds it.

A profiler writes a profile and a partitioner reads it. `sandtable profile` writes JSON:

    {"format": "sandtable-profile", "version": 1, "device": "cpu", ...,
     "layers": [{"name": "conv1", "forward_s": 0.011, "backward_s": 0.023, "activation_bytes": 8, "weight_bytes": 4}],
     "edges": [["conv1", "conv2"]]}

PipeDream's own profiler writes text, with one line per layer and one indented line per edge:

    node4 -- Conv2d(64, 64) -- forward_compute_time=11.5, backward_compute_time=23.1, ..., parameter_size=36928.0
        node4 -- node5

Its times are milliseconds and its sizes bytes; a layer with several outputs lists them as [1.0; 2.0]. The node called
Input is the data, which takes no computing.

This module imports neither torch nor any room, so that both `sandtable.methods` and `sandtable.planner` can use it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

from sandtable.errors import PlanError

__all__ = ["FORMAT", "VERSION", "LayerProfile", "Profile", "ProfileRequest"]

FORMAT = "sandtable-profile"
VERSION = 1

_BASES = ("measured", "predicted")
_SEPARATOR = " -- "
_INPUT = "Input"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """One layer, for one minibatch on one device."""

    name: str
    kind: str = ""
    """The class of its module."""
    forward_s: float
    backward_s: float
    activation_bytes: int
    """Bytes of the tensors that other layers read from it."""
    weight_bytes: int
    """Bytes of its parameters. A parameter that several layers share counts for each."""

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "activation_bytes", "weight_bytes"):
            value = getattr(self, name)
            if not 0 <= value <= sys.float_info.max:
                raise PlanError(
                    f"{name} of a layer must be a finite number, 0 or more, but layer '{self.name}' has {value}; "
                    "profile the model again"
                )

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The layers of a model in order, and the edges between them: from a layer to one that reads from it."""

    model: str = ""
    device: str = ""
    basis: str = "measured"
    """Where the seconds come from: "measured" or "predicted"."""
    num_batches: int = 1
    inputs: tuple[str, ...] = ()
    """Shape and type of each input: 64×3×224×224 float32."""
    layers: tuple[LayerProfile, ...]
    edges: tuple[tuple[str, str], ...]
    whole: Mapping[str, str] = field(default_factory=dict)
    """Modules that could not be traced inside, so that each is one layer, with the reason."""

    def __post_init__(self) -> None:
        if self.basis not in _BASES:
            raise PlanError(f"the basis of a profile must be one of {', '.join(_BASES)}, but got '{self.basis}'")
        names = {layer.name for layer in self.layers}
        if len(names) != len(self.layers):
            raise PlanError(
                f"every layer must have its own name, but {len(self.layers)} layers have {len(names)} names"
            )
        for name in (name for edge in self.edges for name in edge):
            if name not in names:
                raise PlanError(f"an edge must join two layers, but there is no layer '{name}'")

    @property
    def seconds(self) -> float:
        """Forward and backward of one minibatch."""
        return sum(layer.forward_s + layer.backward_s for layer in self.layers)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Profile:
        """Read a file of either form."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"a profile must be a text file, but {path} cannot be read: {error}") from error
        return cls.from_json(text, source=path) if text.lstrip().startswith("{") else cls.from_text(text, source=path)

    @classmethod
    def from_json(cls, text: str, *, source: str | PathLike[str] = "the text") -> Profile:
        """Read what `to_json` wrote; `source` names it in errors."""
        try:
            data: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError as error:
            raise PlanError(
                f"a profile must be complete, but {source} is not JSON: {error}; profile the model again"
            ) from error
        if (data.get("format"), data.get("version")) != (FORMAT, VERSION):
            raise PlanError(
                f"a profile must be a {FORMAT} of version {VERSION}, but {source} is {data.get('format')} of version "
                f"{data.get('version')}; profile the model again with this version of sandtable"
            )
        try:
            given = _known(cls, data)
            given["inputs"] = tuple(data.get("inputs", ()))
            given["layers"] = tuple(
                LayerProfile(**{**_known(LayerProfile, layer), "name": str(layer["name"])}) for layer in data["layers"]
            )
            given["edges"] = tuple((str(origin), str(reader)) for origin, reader in data["edges"])
            return cls(**given)
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError(
                f"every layer and edge of a profile must be complete, but in {source} one is not: {error!r}; "
                "profile the model again"
            ) from error

    @classmethod
    def from_text(cls, text: str, *, source: str | PathLike[str] = "the text") -> Profile:
        """Read a graph.txt of PipeDream's profiler; `source` names it in errors."""
        layers: list[LayerProfile] = []
        edges: list[tuple[str, str]] = []
        inputs: set[str] = set()
        for number, line in enumerate(text.splitlines(), start=1):
            parts = line.strip().split(_SEPARATOR)
            if not line.strip():
                continue
            try:
                if line[0].isspace():
                    origin, reader = parts
                    edges.append((origin, reader))
                elif parts[1] == _INPUT:
                    inputs.add(parts[0])
                else:
                    layers.append(_layer_of_line(*parts))
            except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
                raise PlanError(
                    f"a line of a profile must be a layer or an edge, but {source}:{number} is '{line.strip()[:60]}'; "
                    "give a file of `sandtable profile`, or a graph.txt of PipeDream's profiler"
                ) from error
        layers.sort(key=lambda layer: _node_number(layer.name))
        return cls(layers=tuple(layers), edges=tuple(edge for edge in edges if edge[0] not in inputs))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the profile: as PipeDream's profiler does if the name ends in .txt, as JSON otherwise."""
        text = self.to_text() if Path(path).suffix == ".txt" else self.to_json() + "\n"
        Path(path).write_text(text, encoding="utf-8")

    def to_json(self) -> str:
        """Return the profile as JSON, with its format and version."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1)

    def to_text(self) -> str:
        """Return the profile in the form of PipeDream's profiler: node1 -- Conv2d(conv1) -- ..."""
        node = {layer.name: f"node{number}" for number, layer in enumerate(self.layers, start=1)}
        lines = [
            f"{node[layer.name]} -- {layer.kind}({layer.name}) -- forward_compute_time={layer.forward_s * 1e3:.6f}, "
            f"backward_compute_time={layer.backward_s * 1e3:.6f}, activation_size={layer.activation_bytes:.1f}, "
            f"parameter_size={layer.weight_bytes:.3f}"
            for layer in self.layers
        ]
        return "\n".join([*lines, *(f"\t{node[source]} -- {node[reader]}" for source, reader in self.edges)]) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """What to profile. `function` (module:name) returns the model; or model and inputs; or model, inputs and loss."""

    function: str
    inputs: tuple[str, ...] = ()
    """Shape, and if needed type and bound: `64,3,224,224`, `8,1024:int64:50257`."""
    num_batches: int = 10
    device: str = "auto"
    """cpu, cuda, or auto: cuda where there is a GPU."""
    show_progress: bool = True

    @classmethod
    def from_json(cls, text: str) -> ProfileRequest:
        data = json.loads(text)
        return cls(**{**data, "inputs": tuple(data["inputs"])})

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def _known(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are fields of the dataclass `kind`."""
    names = (entry.name for entry in fields(kind))
    return {name: data[name] for name in names if name in data}


def _layer_of_line(node: str, description: str, values: str) -> LayerProfile:
    fields_of_line = dict(value.split("=") for value in values.split(", "))
    return LayerProfile(
        name=node,
        kind=description,
        forward_s=float(fields_of_line["forward_compute_time"]) / 1e3,
        backward_s=float(fields_of_line["backward_compute_time"]) / 1e3,
        activation_bytes=round(sum(float(part) for part in fields_of_line["activation_size"].strip("[]").split(";"))),
        weight_bytes=round(float(fields_of_line["parameter_size"])),
    )


def _node_number(node: str) -> int:
    return int("".join(letter for letter in node if letter.isdecimal()) or 0)
