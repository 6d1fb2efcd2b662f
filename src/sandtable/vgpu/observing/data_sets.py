"""Data sets: which ones hold the same samples on two ranks, and which parts of them the script cuts out.

Ranks are separate processes, so two data sets are known to be the same by what they hold: their types, numbers and
texts, and the ends of their arrays. What changes as samples are drawn, such as a generator, does not count.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Sequence
from typing import Any

from sandtable.trace import EventKind
from sandtable.vgpu.observing.events import EventLog, after

__all__ = ["fingerprint", "follow_subsets"]

_MOST_DEPTH = 4
_MOST_ATTRIBUTES = 64
_ENDS = 16
"""How many entries of a list or dict are looked at, at each end."""

_END_BYTES = 2048
_MOST_SUBSETS = 64
_MOST_INDICES = 8192


def follow_subsets(log: EventLog) -> None:
    """Note from now on which samples of which data set each `Subset` holds; `random_split` makes these, too."""
    from torch.utils.data import Subset

    seen = 0

    def on_made(result: None, subset: Any, *args: Any, **options: Any) -> None:
        nonlocal seen
        seen += 1
        if seen > _MOST_SUBSETS:
            return
        whole, indices = _resolved(subset)
        data = fingerprint(whole)
        if data and len(indices) <= _MOST_INDICES and all(type(index) is int for index in indices):
            log.note(EventKind.SUBSET, subject=log.number_of("dataset", subset), data=data, indices=indices)

    after(Subset, "__init__", on_made)


def fingerprint(data: Any) -> int:
    """Return a number that is equal for data sets of equal contents, 0 if nothing can be said."""
    try:
        return zlib.crc32(repr(_contents(data, 0)).encode()) or 1
    except Exception:  # a data set may do anything when it is looked at
        return 0


def _resolved(subset: Any) -> tuple[Any, list[Any]]:
    """Return the data set that subsets of subsets were cut from, and the indices in it."""
    from torch.utils.data import Subset

    whole, indices = subset, None
    while isinstance(whole, Subset) and len(whole.indices) <= _MOST_INDICES:
        inner = [int(index) for index in whole.indices]
        indices = inner if indices is None else [inner[index] for index in indices]
        whole = whole.dataset
    return whole, list(indices or ())


def _contents(thing: Any, depth: int) -> Any:
    import torch

    if thing is None or isinstance(thing, str | bytes | int | float | complex | os.PathLike):
        return thing if not isinstance(thing, str | bytes) else (len(thing), thing[:_END_BYTES], thing[-_END_BYTES:])
    if isinstance(thing, torch.Tensor):
        if thing.device.type != "cpu" or thing.layout != torch.strided or thing.is_meta:
            return "tensor", tuple(thing.shape), str(thing.dtype)
        flat = thing.detach().reshape(-1).view(torch.uint8) if thing.numel() else thing
        return "tensor", tuple(thing.shape), str(thing.dtype), _ends(flat.numpy() if thing.numel() else b"")
    if hasattr(thing, "__array_interface__") and hasattr(thing, "ravel"):
        return "array", thing.shape, str(thing.dtype), _ends(thing.ravel().view("uint8") if thing.size else b"")
    if isinstance(thing, torch.Generator | random.Random) or type(thing).__module__.startswith("numpy.random"):
        return "generator"
    if depth >= _MOST_DEPTH:
        return type(thing).__qualname__
    return type(thing).__qualname__, _parts(thing, depth + 1)


def _parts(thing: Any, depth: int) -> Any:
    if isinstance(thing, list | tuple | range):
        ends = (*thing[:_ENDS], *thing[len(thing) // 2 :][:_ENDS], *thing[-_ENDS:])
        return len(thing), [_contents(part, depth) for part in ends]
    if isinstance(thing, dict):
        return len(thing), [(str(name), _contents(part, depth)) for name, part in list(thing.items())[:_ENDS]]
    if isinstance(known := getattr(thing, "_fingerprint", None), str):  # Hugging Face's data sets
        return known
    if callable(thing) and hasattr(thing, "__qualname__"):
        return thing.__qualname__
    attributes = list(getattr(thing, "__dict__", {}).items())[:_MOST_ATTRIBUTES]
    return [(name, _contents(part, depth)) for name, part in attributes]


def _ends(data: Sequence[int] | Any) -> tuple[int, int]:
    """Return digests of the first and the last bytes of an array."""
    return zlib.crc32(bytes(data[:_END_BYTES])), zlib.crc32(bytes(data[-_END_BYTES:]))
