"""Draws: random masks that repeat on ranks with different samples, or differ where ranks hold the same tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sandtable.check.parity.differences import Measured
from sandtable.findings import Evidence, Finding, Severity
from sandtable.trace.real_values import RankValues, SeededDraw

__all__ = ["shared_draws"]


def shared_draws(measured: Measured) -> Iterator[Finding]:
    """Yield a finding if ranks that train on different samples draw the same masks."""
    drawn = measured.drawn or measured.parallel
    firsts = [(stream.ranks, _masks(drawn[stream.ranks[0]])) for stream in measured.plan.streams]
    seen: dict[object, tuple[int, ...]] = {}
    evidence: dict[tuple[str, int], Evidence] = {}
    ranks: set[int] = set()
    for stream, masks in firsts:
        for position, draw in masks:
            key = (draw.place, draw.update, position, draw.sizes, draw.seed)
            other = seen.setdefault(key, stream)
            if other is stream:
                continue
            ranks.update((other[0], stream[0]))
            evidence.setdefault(
                draw.place,
                Evidence(
                    ranks=(other[0], stream[0]),
                    text=f"draw the same random numbers for tensors of {list(draw.sizes)}",
                    file=draw.place[0],
                    line=draw.place[1],
                ),
            )
    if evidence:
        yield Finding(
            rule="parity",
            severity=Severity.WARNING,
            message="ranks that train on different samples must draw different dropout masks, but "
            f"{len(ranks)} of them share theirs: one seed for all of dp",
            ranks=tuple(sorted(ranks)),
            evidence=tuple(evidence.values()),
            remedy="add the data-parallel rank to the seed once the model is built: "
            "torch.cuda.manual_seed(seed + dp_rank)",
        )


def _masks(values: RankValues) -> Sequence[tuple[int, SeededDraw]]:
    masks = [draw for draw in values.draws if draw.update < values.num_updates and draw.is_mask]
    return list(enumerate(masks))
