"""Losses of the first step: whether the ranks' forward passes are that of a single process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sandtable.trace.real_values import RankValues

__all__ = ["compare_losses", "losses_agree"]


def losses_agree(parallel: Sequence[RankValues], replicas: Sequence[RankValues], rtol: float) -> bool:
    """Return whether the mean losses are equal, but for a factor that is the size of a group; True if none is known."""
    found = compare_losses(parallel, replicas)
    if found is None or found[1] == 0:
        return True
    ratio = found[0] / found[1]
    sizes = {1, len(replicas), *(len(group) for values in parallel for group in values.groups)}
    return any(abs(ratio * scale - 1) <= max(rtol, 1e-6) for size in sizes for scale in (size, 1 / size))


def compare_losses(parallel: Sequence[RankValues], replicas: Sequence[RankValues]) -> tuple[float, float] | None:
    """Return the mean loss of the ranks that have one, and that of single processes."""
    loss, expected = _mean(parallel), _mean(replicas)
    return None if loss is None or expected is None else (loss, expected)


def _mean(runs: Sequence[RankValues]) -> float | None:
    sums = [sum(values.losses[0]) for values in runs if values.losses and values.losses[0]]
    return float(np.mean(sums)) if sums else None
