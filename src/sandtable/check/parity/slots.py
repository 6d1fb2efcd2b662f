"""Slots: which part of which parameter of the single process each rank holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.check.parity.streams import Stream
from sandtable.errors import ParityError
from sandtable.trace.real_values import ParameterPiece, RankValues

__all__ = ["Fused", "Layout", "Slot", "find_layout", "possible_fusions"]

Array = npt.NDArray[Any]
Fused = Mapping[str, int]
"""Part of a parameter's name -> how many weights lie in it one behind the other, such as 3 in a fused qkv."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A part of a parameter: elements from `start` on if it is flat, a block at `offset`, `positions` along `dim`."""

    name: str
    local_shape: tuple[int, ...]
    start: int = -1
    offset: tuple[int, ...] = ()
    dim: int = -1
    positions: tuple[int, ...] = ()
    index: int = 0
    count: int = 1
    """Which of how many parts of it this is, where parts are equal."""

    def read(self, whole: Array) -> Array:
        """Return this part."""
        if self.start >= 0:
            length = int(np.prod(self.local_shape))
            return whole.reshape(-1)[self.start : self.start + length].reshape(self.local_shape)
        if self.positions:
            return np.take(whole, self.positions, axis=self.dim)
        return whole[self._block] if self.offset else whole

    def write(self, whole: Array, part: Array) -> None:
        """Write this part."""
        if self.start >= 0:
            flat = whole.reshape(-1)
            flat[self.start : self.start + part.size] = part.reshape(-1)
        elif self.positions:
            np.moveaxis(whole, self.dim, 0)[list(self.positions)] = np.moveaxis(part, self.dim, 0)
        else:
            whole[self._block if self.offset else ...] = part.reshape(self.local_shape)

    @property
    def _block(self) -> tuple[slice, ...]:
        return tuple(slice(begin, begin + size) for begin, size in zip(self.offset, self.local_shape, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The shapes of the single process's parameters, and the slots of each rank by its own name of the parameter."""

    shapes: Mapping[str, tuple[int, ...]]
    slots: tuple[Mapping[str, Slot], ...]
    unmatched: tuple[str, ...] = ()
    """Parameters of the single process that no rank holds."""
    pieces: tuple[Mapping[str, ParameterPiece], ...] = ()
    is_by_order: bool = False
    """Whether names did not match, so that parameters were matched in their order."""

    def holders(self, name: str) -> Iterator[tuple[int, str, Slot]]:
        """Yield rank, its own name and its slot, for all that hold a part of this parameter."""
        for rank, slots in enumerate(self.slots):
            for own, slot in slots.items():
                if slot.name == name:
                    yield rank, own, slot

    def index_of(self, rank: int, count: int) -> int | None:
        """Return which part a rank holds of parameters that are cut into `count` parts; None if it holds none such."""
        slots = self.slots[rank].values()
        return next((slot.index for slot in slots if slot.count == count), None)

    def joined(self, parallel: Sequence[RankValues], update: int) -> dict[str, Array]:
        """Return the whole parameters before an update; of replicas, the lowest rank's."""
        wholes: dict[str, Array] = {}
        for name, shape in self.shapes.items():
            whole = np.zeros(shape, dtype=np.float32)
            known = False
            for rank, own, slot in reversed(list(self.holders(name))):
                part = parallel[rank].values.get((update, own))
                if part is not None:
                    slot.write(whole, part)
                    known = True
            if known:
                wholes[name] = whole
        return wholes


def find_layout(
    parallel: Sequence[RankValues], outline: RankValues, streams: Sequence[Stream], fused: Fused | None = None
) -> Layout:
    """Match the parameters of all ranks with those of the single process, by name, or by order where names differ."""
    shapes = {piece.name: piece.shape or piece.local_shape for piece in outline.pieces}
    renumbered = _renumbered(parallel, shapes, streams)
    names = renumbered or [{piece.name: piece.name for piece in values.pieces} for values in parallel]
    axes = _Axes(parallel, names, shapes, streams)
    slots: list[dict[str, Slot]] = []
    for values, own_names in zip(parallel, names, strict=True):
        mine: dict[str, Slot] = {}
        for piece in values.pieces:
            name = own_names.get(piece.name, "")
            if name in shapes:
                mine[piece.name] = _slot(piece, name, shapes[name], values, axes, fused or {})
        slots.append(mine)
    held = {slot.name for mine in slots for slot in mine.values()}
    return Layout(
        shapes={name: shape for name, shape in shapes.items() if name in held},
        slots=tuple(slots),
        unmatched=tuple(name for name in shapes if name not in held),
        pieces=tuple({piece.name: piece for piece in values.pieces} for values in parallel),
        is_by_order=renumbered is not None,
    )


def possible_fusions(layout: Layout) -> Iterator[Fused]:
    """Yield what may lie behind parameters that ranks hold parts of: query, key and value in one, or gate and up."""
    cut = {slot.name for slots in layout.slots for slot in slots.values() if slot.positions and slot.dim == 0}
    threes = {name: 3 for name in cut if _has_parts(name, layout.shapes, 3, ("qkv", "c_attn", "in_proj", "query_key"))}
    twos = {
        name: 2 for name in cut if _has_parts(name, layout.shapes, 2, ("gate_up", "up_gate", "w13", "w1_w3", "glu"))
    }
    yield from (fused for fused in (threes, twos, {**threes, **twos} if threes and twos else {}) if fused)


def _has_parts(name: str, shapes: Mapping[str, tuple[int, ...]], parts: int, words: Sequence[str]) -> bool:
    """Return whether the name says so, or for three parts the shape of the layer's weight."""
    weight = shapes.get(f"{name.rpartition('.')[0]}.weight", shapes[name])
    is_multiple = parts == 3 and len(weight) == 2 and weight[0] == parts * weight[1]
    return shapes[name][0] % parts == 0 and (is_multiple or any(word in name.lower() for word in words))


def _slot(
    piece: ParameterPiece,
    name: str,
    shape: tuple[int, ...],
    values: RankValues,
    axes: _Axes,
    fused: Fused,
) -> Slot:
    if piece.is_explicit:
        dims = [dim for dim, sizes in enumerate(zip(piece.local_shape, shape, strict=False)) if sizes[0] != sizes[1]]
        is_cut = bool(piece.offset) and len(dims) == 1 and piece.local_shape[dims[0]] > 0
        return Slot(
            name=name,
            local_shape=piece.local_shape,
            start=piece.start,
            offset=piece.offset,
            index=piece.offset[dims[0]] // piece.local_shape[dims[0]] if is_cut else 0,
            count=shape[dims[0]] // piece.local_shape[dims[0]] if is_cut else 1,
        )
    if piece.local_shape == shape:
        return Slot(name=name, local_shape=shape)
    cut = _cut(piece.local_shape, shape)
    if cut is None:
        raise ParityError(
            f"a rank must hold a parameter whole, or an equal part of it along one dimension, but rank {values.rank} "
            f"holds {list(piece.local_shape)} of {name} {list(shape)}; give sizes that tp divides with --shrink"
        )
    dim, count = cut
    index = axes.index_of(values.rank, piece.name, count)
    parts = next((parts for text, parts in fused.items() if text in name), 1)
    length = shape[dim] // (count * parts)
    positions = [part * length * count + index * length + place for part in range(parts) for place in range(length)]
    return Slot(name=name, local_shape=piece.local_shape, dim=dim, positions=tuple(positions), index=index, count=count)


class _Axes:
    """Which process group the parts of a parameter are spread over.

    It has as many members as there are parts; all hold the parameter, and their parts have different values. Where that
    fits several groups, as with biases of zeros, it is the one that fits most other parameters of the rank.
    """

    def __init__(
        self,
        parallel: Sequence[RankValues],
        names: Sequence[Mapping[str, str]],
        shapes: Mapping[str, tuple[int, ...]],
        streams: Sequence[Stream],
    ) -> None:
        self._parallel = parallel
        self._names = names
        self._streams = {rank: stream.ranks for stream in streams for rank in stream.ranks}
        self._votes: Counter[tuple[int, tuple[int, ...]]] = Counter()
        for values, own_names in zip(parallel, names, strict=True):
            for piece in values.pieces:
                shape = shapes.get(own_names.get(piece.name, ""))
                cut = None if shape is None or piece.is_explicit else _cut(piece.local_shape, shape)
                if cut is not None:
                    self._votes.update((values.rank, group) for group in self._fitting(values.rank, piece.name, cut[1]))

    def index_of(self, rank: int, name: str, count: int) -> int:
        """Return which of `count` equal parts a rank holds: its position in the group."""
        groups = self._fitting(rank, name, count) or self._possible(rank, name, count)
        if groups:
            return max(groups, key=lambda group: self._votes[rank, group]).index(rank)
        stream = self._streams.get(rank, ())
        return (stream.index(rank) if stream and len(stream) % count == 0 else rank) % count

    def _fitting(self, rank: int, name: str, count: int) -> list[tuple[int, ...]]:
        return [
            group
            for group in self._possible(rank, name, count)
            if _all_differ([self._parallel[member].values.get((0, name)) for member in group])
        ]

    def _possible(self, rank: int, name: str, count: int) -> list[tuple[int, ...]]:
        stream = self._streams.get(rank, ())
        whole = self._names[rank].get(name)
        groups = [
            group
            for group in dict.fromkeys((*self._parallel[rank].groups, stream))
            if len(group) == count and rank in group and all(self._names[one].get(name) == whole for one in group)
        ]
        return [group for group in groups if set(group) <= set(stream)] or groups


def _cut(local: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the dimension along which a shape was cut, and into how many parts."""
    if len(local) != len(shape):
        return None
    cuts = [dim for dim, (part, whole) in enumerate(zip(local, shape, strict=True)) if part != whole]
    if len(cuts) != 1 or local[cuts[0]] == 0 or shape[cuts[0]] % local[cuts[0]]:
        return None
    return cuts[0], shape[cuts[0]] // local[cuts[0]]


def _all_differ(arrays: Sequence[Array | None]) -> bool:
    return not any(one is None or other is None or np.array_equal(one, other) for one, other in combinations(arrays, 2))


def _renumbered(
    parallel: Sequence[RankValues], shapes: Mapping[str, tuple[int, ...]], streams: Sequence[Stream]
) -> list[dict[str, str]] | None:
    """Return names for pipeline stages that number their layers from 0; None if all names of a single process occur."""
    own = [list(values.pieces) for values in parallel]
    if shapes.keys() <= {piece.name for pieces in own for piece in pieces}:
        return None
    names: list[dict[str, str]] = [{} for _ in parallel]
    for stream in streams:
        matched = next(filter(None, (_match(own, stages, shapes) for stages in _stages(stream.ranks))), None)
        if matched is None:
            return None
        for rank, mapping in matched.items():
            names[rank] = mapping
    return names


def _stages(ranks: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    """Yield the ways to make stages of equal size of these ranks: of neighbours, then of every n-th."""
    for count in range(2, len(ranks) + 1):
        if len(ranks) % count == 0:
            size = len(ranks) // count
            yield [ranks[stage * size : (stage + 1) * size] for stage in range(count)]
            if size > 1:
                yield [ranks[stage::count] for stage in range(count)]


def _match(
    own: Sequence[Sequence[ParameterPiece]], stages: Sequence[tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[int, dict[str, str]] | None:
    """Match the parameters of the stages, one behind the other, with those of a single process in order."""
    matched: dict[int, dict[str, str]] = {}
    wanted = list(shapes.items())
    at = 0
    for stage in stages:
        first = [(piece.name, piece.local_shape) for piece in own[stage[0]]]
        if any([(piece.name, piece.local_shape) for piece in own[rank]] != first for rank in stage):
            return None
        here = wanted[at : at + len(first)]
        at += len(first)
        if len(here) < len(first) or not all(
            local == shape or _cut(local, shape) for (_, local), (_, shape) in zip(first, here, strict=True)
        ):
            return None
        for rank in stage:
            matched[rank] = {mine: name for (mine, _), (name, _) in zip(first, here, strict=True)}
    return matched if at == len(wanted) else None
