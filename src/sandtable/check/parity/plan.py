"""The plan of the reference: how many single processes, and what each takes from which ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.check.parity.slots import Fused, Layout, find_layout
from sandtable.check.parity.streams import Stream, copies_by_line, find_streams
from sandtable.errors import ParityError
from sandtable.findings import place_text
from sandtable.trace.guide import Guide, GuidedDraw
from sandtable.trace.real_values import RankValues, SeededDraw

__all__ = ["ReferencePlan", "plan_reference", "plan_update"]

Array = npt.NDArray[Any]
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePlan:
    """What to compare with: the streams and slots of the ranks, and a guide for each single process.

    A single process may read as much as several streams: then `fold` of them are put together.
    """

    streams: tuple[Stream, ...]
    layout: Layout
    fold: int
    guides: tuple[Guide, ...]
    num_updates: int
    unmatched_masks: tuple[tuple[str, int], ...] = ()
    """Lines where single processes draw masks that no rank's could be matched with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fold:
    """How many streams one process reads: side by side in each tensor (`wide`), and one after the other (`long`).

    It may also read several micro-batches of a stream at once (`deep`).
    """

    wide: int = 1
    dim: int = 0
    long: int = 1
    deep: int = 1

    @property
    def size(self) -> int:
        return self.wide * self.long


def plan_reference(parallel: Sequence[RankValues], outline: RankValues, *, fused: Fused | None = None) -> ReferencePlan:
    """Plan the single processes whose mean gradient the ranks should have."""
    num_updates = min(values.num_updates for values in parallel)
    streams = find_streams(parallel, outline)
    layout = find_layout(parallel, outline, streams, fused)
    if layout.unmatched:
        shown = ", ".join(layout.unmatched[:_MAX_SHOWN]) + (", ..." if len(layout.unmatched) > _MAX_SHOWN else "")
        raise ParityError(
            f"every parameter of the single process must be one of the ranks', but no rank holds {shown}; let --single "
            "and --shrink describe the same model"
        )
    values: dict[tuple[int, str], Array] = {}
    for update in sorted({update for one in parallel for update, _ in one.values}):
        values |= {(update, name): whole for name, whole in layout.joined(parallel, update).items()}
    folds = _folds(streams, outline)
    fold = max((*(one.size for one in folds.values()), _fold_of_draws(streams, parallel, outline)), default=1)
    num_replicas = max(1, len(streams) // fold)
    guides = []
    for replica in range(num_replicas):
        chosen = [streams[(replica * fold + number) % len(streams)] for number in range(fold)]
        draws = _draws(chosen, parallel, outline, layout, folds)
        guides.append(Guide(copies=_copies(chosen, outline, folds), draws=draws, values=values))
    masks = {(*draw.place,) for draw in outline.draws if draw.is_mask and draw.update < num_updates}
    matched = {(file, line) for _, file, line, _ in guides[0].draws}
    return ReferencePlan(
        streams=streams,
        layout=layout,
        fold=fold,
        guides=tuple(guides),
        num_updates=num_updates,
        unmatched_masks=tuple(sorted(masks - matched)),
    )


def plan_update(plan: ReferencePlan, replicas: Sequence[RankValues]) -> Guide | None:
    """Return the guide of the process that gets the mean of all replicas' gradients; None if there is only one."""
    if len(replicas) == 1:
        return None
    sums: dict[tuple[int, str], Array] = {}
    for replica in replicas:
        for key, gradient in replica.raw_gradients.items():
            sums[key] = sums[key] + gradient if key in sums else gradient
    first = plan.guides[0]
    return Guide(
        copies=first.copies,
        draws=first.draws,
        values=first.values,
        gradients={key: total / len(replicas) for key, total in sums.items()},
        backwards={key: count for key, count in replicas[0].backwards.items() if key in sums},
    )


def _folds(streams: Sequence[Stream], outline: RankValues) -> dict[tuple[str, int, int], _Fold]:
    """Return how the copies of one process are made of several streams', by line; other copies are its own."""
    folds: dict[tuple[str, int, int], _Fold] = {}
    for key, wanted in copies_by_line(outline).items():
        given = streams[0].copies.get(key, ())
        if not given:
            continue
        is_constant = all(_equal(stream.copies.get(key, ()), given) for stream in streams)
        wide = _widths([(one.shape, other.shape) for one, other in zip(given, wanted, strict=False)])
        deep = max(len(given) // max(len(wanted), 1), 1)
        if wide is not None and deep > 1 and len(given) == deep * len(wanted) and wide[1] % deep == 0:
            folds[key] = _Fold(wide=wide[1] // deep, dim=wide[0], deep=deep)
        elif wide is not None and len(wanted) % len(given) == 0:
            long = 1 if is_constant and len(streams) > 1 else len(wanted) // len(given)
            folds[key] = _Fold(wide=wide[1], dim=wide[0], long=long)
        elif not is_constant and key[2] < outline.num_updates:
            raise _unlike(key, given, wanted)
        if any(_shapes(stream.copies.get(key, ())) != _shapes(given) for stream in streams):
            other = next(stream for stream in streams if _shapes(stream.copies.get(key, ())) != _shapes(given))
            raise _unlike(key, given, other.copies.get(key, ()))
    return folds


def _shapes(arrays: Sequence[Array]) -> list[tuple[int, ...]]:
    return [array.shape for array in arrays]


def _unlike(key: tuple[str, int, int], given: Sequence[Array], wanted: Sequence[Array]) -> ParityError:
    file, line, update = key
    return ParityError(
        "all runs must read samples of equal shapes, or a single process several times as many, but in step "
        f"{update + 1} at {place_text(file, line)} one rank copies {_shapes(given)[:4]} and another process "
        f"{_shapes(wanted)[:4]}; give batches of equal size with --shrink and --single"
    )


def _fold_of_draws(streams: Sequence[Stream], parallel: Sequence[RankValues], outline: RankValues) -> int:
    """Return how many streams' samples one process draws on the card at once."""
    given = _draws_by_line(parallel[streams[0].ranks[0]])
    widths = [
        _width(one.sizes, other.sizes)
        for key, wanted in _draws_by_line(outline).items()
        for one, other in zip(given.get(key, ()), wanted, strict=False)
        if not other.is_mask and not other.is_setup
    ]
    counts = [width[1] for width in widths if width is not None]
    return max((count for count in counts if len(streams) % count == 0), default=1)


def _widths(shapes: Iterable[tuple[tuple[int, ...], tuple[int, ...]]]) -> tuple[int, int] | None:
    """Return the dimension in which the second shapes are larger, and how many times; None if they do not agree."""
    widths = {_width(*pair) for pair in shapes}
    return widths.pop() if len(widths) == 1 else None


def _width(part: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, int] | None:
    if part == whole:
        return 0, 1
    dims = [dim for dim, sizes in enumerate(zip(part, whole, strict=False)) if sizes[0] != sizes[1]]
    if len(part) != len(whole) or len(dims) != 1 or part[dims[0]] == 0 or whole[dims[0]] % part[dims[0]]:
        return None
    return dims[0], whole[dims[0]] // part[dims[0]]


def _equal(one: Sequence[Array], other: Sequence[Array]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def _copies(
    streams: Sequence[Stream], outline: RankValues, folds: Mapping[tuple[str, int, int], _Fold]
) -> dict[tuple[str, int, int], tuple[Array, ...]]:
    copies: dict[tuple[str, int, int], tuple[Array, ...]] = {}
    for key, wanted in copies_by_line(outline).items():
        fold = folds.get(key)
        if fold is None:
            continue
        given = [stream.copies[key] for stream in streams]
        arrays = []
        for number in range(len(wanted)):
            first, position = divmod(number, len(given[0]))
            first %= fold.long
            parts = [
                given[(first * fold.wide + part) % len(given)][position + micro * len(wanted)]
                for part in range(fold.wide)
                for micro in range(fold.deep)
            ]
            arrays.append(np.concatenate(parts, axis=fold.dim) if len(parts) > 1 else parts[0])
        copies[key] = tuple(arrays)
    return copies


DrawKey = tuple[str, str, int, int]


def _draws(
    streams: Sequence[Stream],
    parallel: Sequence[RankValues],
    outline: RankValues,
    layout: Layout,
    folds: Mapping[tuple[str, int, int], _Fold],
) -> dict[DrawKey, tuple[GuidedDraw, ...]]:
    """Return seeds for the draws of one process, as far as they can be matched, one by one, with the ranks'."""
    num_passes = {fold.long if fold.deep == 1 else 0 for fold in folds.values()}
    by_rank = {rank: _draws_by_line(parallel[rank]) for stream in streams for rank in stream.ranks}
    guided: dict[DrawKey, tuple[GuidedDraw, ...]] = {}
    for key, wanted in _draws_by_line(outline).items():
        lists = [{rank: by_rank[rank].get(key, ()) for rank in stream.ranks} for stream in streams]
        lengths = {len(draws) for stream in lists for draws in stream.values()}
        length = lengths.pop()
        if lengths or not length or len(wanted) % length:
            continue
        if wanted[0].is_mask and num_passes and len(wanted) // length not in num_passes:
            continue  # other layers, or other micro-batches
        draws = [_guided(lists, number, length, one.sizes, layout) for number, one in enumerate(wanted)]
        if all(draws):
            guided[key] = tuple(draw for draw in draws if draw is not None)
    return guided


def _draws_by_line(values: RankValues) -> dict[DrawKey, tuple[SeededDraw, ...]]:
    draws: dict[DrawKey, tuple[SeededDraw, ...]] = {}
    for draw in values.draws:
        key = (draw.name, *draw.place, draw.update)
        draws[key] = (*draws.get(key, ()), draw)
    return draws


def _guided(
    lists: Sequence[Mapping[int, Sequence[SeededDraw]]],
    number: int,
    length: int,
    sizes: tuple[int, ...],
    layout: Layout,
) -> GuidedDraw | None:
    first, position = divmod(number, length)
    stream = lists[first % len(lists)]
    draws = {rank: rows[position] for rank, rows in stream.items()}
    one = next(iter(draws.values()))
    width = _width(one.sizes, sizes)
    if width is None:
        return None
    dim, count = width
    if count == 1:
        return GuidedDraw(sizes=sizes, dim=0, seeds=(one.seed,))
    across = [next(iter(rows.values()))[position].seed for rows in lists]
    if len(across) == count:  # the parts of a batch
        return GuidedDraw(sizes=sizes, dim=dim, seeds=tuple(across))
    within = {index: draw.seed for rank, draw in draws.items() if (index := layout.index_of(rank, count)) is not None}
    if sorted(within) != list(range(count)):
        return None
    return GuidedDraw(sizes=sizes, dim=dim, seeds=tuple(within[index] for index in range(count)))
