"""Real values: what one rank computed in a run that was made for its numbers, as `parity` compares it.

Per update: the loss, the gradients that the optimizer got, and the parameters before it; and what came from outside,
which another run can take in its place: batches copied from the host, and the seeds of random numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BatchCopy", "ParameterPiece", "RankValues", "SeededDraw"]

Array = npt.NDArray[Any]
Place = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPiece:
    """What a rank holds of a parameter: a block that begins at `offset`, elements from `start` on, or as it is.

    `shape` is that of the whole parameter, empty if the rank itself does not know it: then what it holds may be the
    whole or a part. `local_shape` is that of the piece. `has_partial_gradient`: ranks' gradients still must be added.
    """

    name: str
    local_shape: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...] = ()
    offset: tuple[int, ...] = ()
    start: int = -1
    is_held: bool = True
    """Whether an optimizer holds it."""
    has_partial_gradient: bool = False

    @property
    def is_explicit(self) -> bool:
        """Whether the rank knows which part of the parameter this is."""
        return bool(self.offset) or self.start >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCopy:
    """A tensor that the host copied to the card, before update number `update`."""

    place: Place
    update: int
    array: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededDraw:
    """Random numbers drawn on the card."""

    name: str
    place: Place
    update: int
    sizes: tuple[int, ...]
    seed: int
    is_setup: bool = False
    """Whether no optimizer had been made yet: it may initialise a weight."""

    @property
    def is_mask(self) -> bool:
        """Whether this chooses what to leave out, as dropout does."""
        return len(self.sizes) > 1 and self.name.partition(".")[0] in _MASKS


@dataclass(frozen=True, slots=True, kw_only=True)
class RankValues:
    """What one rank computed. Arrays are known by update, from 0, and by name of parameter."""

    rank: int
    num_updates: int
    pieces: tuple[ParameterPiece, ...]
    groups: tuple[tuple[int, ...], ...]
    """The ranks of each process group of this rank."""
    values: Mapping[tuple[int, str], Array]
    """Of parameters before an update; those of the number behind the last are the final ones."""
    gradients: Mapping[tuple[int, str], Array]
    """As the optimizer got them; missing where a parameter had none."""
    unclipped_gradients: Mapping[tuple[int, str], Array]
    """Before their norm was clipped, if it was."""
    raw_gradients: Mapping[tuple[int, str], Array]
    """As the last backward pass before the update left them."""
    backwards: Mapping[tuple[int, str], int]
    """How many backward passes had ended then."""
    losses: tuple[tuple[float, ...], ...]
    """Of each update, the scalars that backward passes began at."""
    copies: tuple[BatchCopy, ...] = ()
    draws: tuple[SeededDraw, ...] = ()
    unknown: tuple[tuple[str, Place], ...] = ()
    """Operators whose results could not be computed, and the first line of each."""
    is_half: bool = False
    """Whether any operator computed in half precision."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Where things happened: "step", "backward"."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write one file."""
        arrays: dict[str, Array] = {}
        for kind in _ARRAYS:
            for (update, name), array in getattr(self, kind).items():
                arrays[f"{kind}/{update}/{name}"] = array
        for number, copy in enumerate(self.copies):
            arrays[f"copies/{number}"] = copy.array
        document = {
            "rank": self.rank,
            "num_updates": self.num_updates,
            "pieces": [asdict(piece) for piece in self.pieces],
            "groups": self.groups,
            "backwards": [(update, name, count) for (update, name), count in self.backwards.items()],
            "losses": self.losses,
            "copies": [(copy.place, copy.update) for copy in self.copies],
            "draws": [asdict(draw) for draw in self.draws],
            "unknown": self.unknown,
            "is_half": self.is_half,
            "places": dict(self.places),
        }
        write_arrays(path, document, arrays)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> RankValues:
        """Read what `save` wrote."""
        document, arrays = read_arrays(path)
        kinds: dict[str, dict[tuple[int, str], Array]] = {kind: {} for kind in _ARRAYS}
        for key, array in arrays.items():
            kind, _, rest = key.partition("/")
            if kind in kinds:
                update, _, name = rest.partition("/")
                kinds[kind][int(update), name] = array
        return cls(
            rank=document["rank"],
            num_updates=document["num_updates"],
            pieces=tuple(ParameterPiece(**_tuples(row)) for row in document["pieces"]),
            groups=tuple(map(tuple, document["groups"])),
            backwards={(update, name): count for update, name, count in document["backwards"]},
            losses=tuple(map(tuple, document["losses"])),
            copies=tuple(
                BatchCopy(place=(file, line), update=update, array=arrays[f"copies/{number}"])
                for number, ((file, line), update) in enumerate(document["copies"])
            ),
            draws=tuple(SeededDraw(**_tuples(row)) for row in document["draws"]),
            unknown=tuple((name, (file, line)) for name, (file, line) in document["unknown"]),
            is_half=document["is_half"],
            places={name: (file, line) for name, (file, line) in document["places"].items()},
            **kinds,
        )


_MASKS = ("aten::native_dropout", "aten::bernoulli", "aten::bernoulli_")
_ARRAYS = ("values", "gradients", "unclipped_gradients", "raw_gradients")


def write_arrays(path: str | PathLike[str], document: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write a JSON document and named arrays into one file."""
    keys = list(arrays)
    text = np.frombuffer(json.dumps({**document, "keys": keys}).encode(), dtype=np.uint8)
    with open(path, "wb") as file:
        numbered: dict[str, Any] = {f"array{number}": arrays[key] for number, key in enumerate(keys)}
        np.savez(file, document=text, **numbered)


def read_arrays(path: str | PathLike[str]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read what `write_arrays` wrote."""
    with np.load(path) as stored:
        document = json.loads(stored["document"].tobytes())
        arrays = {key: stored[f"array{number}"] for number, key in enumerate(document.pop("keys"))}
    return document, arrays


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
