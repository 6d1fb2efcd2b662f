"""Streams: which ranks read the same samples. They hold one copy of the model together; other streams hold replicas."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.errors import ParityError
from sandtable.trace.real_values import RankValues, SeededDraw

__all__ = ["CopyKey", "Stream", "copies_by_line", "find_streams"]

Array = npt.NDArray[Any]
CopyKey = tuple[str, int, int]
"""File, line and update."""

_DATA_DRAWS = ("randn", "rand", "normal_", "uniform_", "randint", "random_", "randperm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The ranks that read one stream of samples, and what they read."""

    ranks: tuple[int, ...]
    copies: Mapping[CopyKey, tuple[Array, ...]]


def find_streams(parallel: Sequence[RankValues], outline: RankValues) -> tuple[Stream, ...]:
    """Return the streams, that of the lowest rank first."""
    wanted = {key for key in copies_by_line(outline) if key[2] < outline.num_updates}
    copies = [copies_by_line(values, wanted) for values in parallel]
    everything = {key for rank in copies for key in rank}
    missing = sorted({(file, line) for file, line, _ in wanted - everything})
    if wanted and not everything:
        places = ", ".join(f"{file}:{line}" for file, line in missing[:3])
        raise ParityError(
            f"the ranks must read their samples on the same lines as a single process, but none copies anything to the "
            f"GPU at {places}; check --single"
        )
    if not everything and not any(_is_sample(draw) for draw in outline.draws):
        raise ParityError(
            "samples must reach the GPU, by a copy from the host or drawn there, but a single process neither copies "
            "nor draws any; train on cuda devices"
        )
    whole = [frozenset(rank) >= everything for rank in copies]
    if all(whole):
        return _by_content(parallel, copies)
    return _by_groups(parallel, copies, everything)


def copies_by_line(values: RankValues, wanted: Iterable[CopyKey] | None = None) -> dict[CopyKey, tuple[Array, ...]]:
    """Return what a rank copied to the card, by line and update, in order."""
    copies: dict[CopyKey, tuple[Array, ...]] = {}
    only = None if wanted is None else set(wanted)
    for copy in values.copies:
        key = (*copy.place, copy.update)
        if only is None or key in only:
            copies[key] = (*copies.get(key, ()), copy.array)
    return copies


def _by_content(
    parallel: Sequence[RankValues], copies: Sequence[Mapping[CopyKey, tuple[Array, ...]]]
) -> tuple[Stream, ...]:
    members: dict[str, list[int]] = {}
    for values, read in zip(parallel, copies, strict=True):
        members.setdefault(_digest_of_copies(read), []).append(values.rank)
    if len(members) == 1:  # samples may be drawn on the card
        members = {}
        for values in parallel:
            members.setdefault(_digest_of_draws(values), []).append(values.rank)
    return tuple(Stream(ranks=tuple(ranks), copies=copies[ranks[0]]) for ranks in members.values())


def _by_groups(
    parallel: Sequence[RankValues], copies: Sequence[Mapping[CopyKey, tuple[Array, ...]]], everything: set[CopyKey]
) -> tuple[Stream, ...]:
    """Return process groups whose members read everything together: pipelines, or ranks of which one reads for all."""
    groups = sorted({group for values in parallel for group in values.groups}, key=lambda group: (len(group), group))
    for size in sorted({len(group) for group in groups}):
        streams = []
        for group in (group for group in groups if len(group) == size):
            together = _together([copies[rank] for rank in group])
            if together is not None and together.keys() == everything:
                streams.append(Stream(ranks=tuple(sorted(group)), copies=together))
        if sorted(rank for stream in streams for rank in stream.ranks) == list(range(len(parallel))):
            return _merged(sorted(streams, key=lambda stream: stream.ranks))
    raise ParityError(
        "some process group must copy a whole batch to its GPUs, but none does; let every rank, or the first and the "
        "last stage of each pipeline, copy its batch"
    )


def _merged(streams: Sequence[Stream]) -> tuple[Stream, ...]:
    """Return the streams; those of equal content as one."""
    merged: list[Stream] = []
    for stream in streams:
        for number, other in enumerate(merged):
            if _together([stream.copies, other.copies]) is not None:
                merged[number] = Stream(ranks=tuple(sorted((*other.ranks, *stream.ranks))), copies=other.copies)
                break
        else:
            merged.append(stream)
    return tuple(merged)


def _together(reads: Sequence[Mapping[CopyKey, tuple[Array, ...]]]) -> dict[CopyKey, tuple[Array, ...]] | None:
    """Return what all ranks have read; None if two read something different on one line."""
    together: dict[CopyKey, tuple[Array, ...]] = {}
    for read in reads:
        for key, arrays in read.items():
            known = together.setdefault(key, arrays)
            if len(known) != len(arrays) or not all(map(np.array_equal, known, arrays)):
                return None
    return together


def _digest_of_copies(read: Mapping[CopyKey, tuple[Array, ...]]) -> str:
    digest = hashlib.sha256()
    for key in sorted(read):
        for array in read[key]:
            digest.update(repr((key, array.shape, str(array.dtype))).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _digest_of_draws(values: RankValues) -> str:
    draws = [draw for draw in values.draws if _is_sample(draw) and draw.update < values.num_updates]
    return repr([(draw.place, draw.update, draw.seed) for draw in draws])


def _is_sample(draw: SeededDraw) -> bool:
    return not draw.is_setup and any(draw.name == f"aten::{name}" for name in _DATA_DRAWS)
