"""Profiles: what every layer of a model costs, and the file that says so.

A profile is what a partitioner needs: seconds forward and backward, bytes of what a layer hands on, bytes of its
weights, and who reads from whom. `sandtable.plan.read_profile` reads the file:

    {"format": "sandtable-profile", "version": 1, "device": "cpu", ...,
     "layers": [{"name": "conv1", "forward_s": 0.011, "backward_s": 0.023, "activation_bytes": 8, "weight_bytes": 4}],
     "edges": [["conv1", "conv2"]]}

`to_text` writes the form of PipeDream's own profiler instead, for its tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

__all__ = ["FORMAT", "VERSION", "LayerProfile", "Profile"]

FORMAT = "sandtable-profile"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """One layer, for one minibatch on one device."""

    name: str
    kind: str
    """The class of its module."""
    forward_s: float
    backward_s: float
    activation_bytes: int
    """Of the tensors that others read from it."""
    weight_bytes: int
    """Of its parameters; a parameter that several layers share counts for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All layers of a model, in order, and the edges between them: from a layer to one that reads from it."""

    model: str
    device: str
    basis: str
    """How the seconds came about: "measured" or "predicted"."""
    num_batches: int
    inputs: tuple[str, ...]
    """Shape and type of each input: 64×3×224×224 float32."""
    layers: tuple[LayerProfile, ...]
    edges: tuple[tuple[str, str], ...]
    whole: Mapping[str, str] = field(default_factory=dict)
    """Modules that could not be traced inside, so that each is one layer, and why."""

    @property
    def seconds(self) -> float:
        """Forward and backward of one minibatch."""
        return sum(layer.forward_s + layer.backward_s for layer in self.layers)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Profile:
        """From `to_dict`."""
        names = [each.name for each in fields(cls)]
        layers = tuple(LayerProfile(**layer) for layer in data["layers"])
        edges = tuple((source, reader) for source, reader in data["edges"])
        given = {**data, "layers": layers, "edges": edges, "inputs": tuple(data["inputs"])}
        return cls(**{name: given[name] for name in names})

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def to_text(self) -> str:
        """Lines of the published profiles: node1 -- Conv2d(conv1) -- forward_compute_time=..., in ms and bytes."""
        node = {layer.name: f"node{number}" for number, layer in enumerate(self.layers, start=1)}
        lines = [
            f"{node[each.name]} -- {each.kind}({each.name}) -- forward_compute_time={each.forward_s * 1e3:.6f}, "
            f"backward_compute_time={each.backward_s * 1e3:.6f}, activation_size={each.activation_bytes:.1f}, "
            f"parameter_size={each.weight_bytes:.3f}"
            for each in self.layers
        ]
        return "\n".join([*lines, *(f"\t{node[source]} -- {node[reader]}" for source, reader in self.edges)]) + "\n"

    def save(self, path: str | PathLike[str]) -> None:
        """Write the file: our own form, or that of the published profiles where the name ends in .txt."""
        text = self.to_text() if Path(path).suffix == ".txt" else json.dumps(self.to_dict(), indent=1) + "\n"
        Path(path).write_text(text, encoding="utf-8")
