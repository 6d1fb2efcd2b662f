"""Losses: whether what a backward pass begins at is a mean, and by what the script multiplied it."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = ["LossReader"]

_MOST_PASSES = 512
_MOST_NODES = 64
_MEAN = 1
"""The number of `reduction="mean"` in the nodes of losses."""

_MEANS = frozenset({"MeanBackward0", "MeanBackward1"})
_LOSSES = frozenset(
    {
        "NllLossBackward0",
        "NllLoss2DBackward0",
        "MseLossBackward0",
        "SmoothL1LossBackward0",
        "HuberLossBackward0",
        "BinaryCrossEntropyBackward0",
        "BinaryCrossEntropyWithLogitsBackward0",
    }
)
_FACTORS = frozenset({"MulBackward0", "DivBackward0"})
_SUMS = frozenset({"AddBackward0", "SubBackward0"})
_COPIES = frozenset({"NegBackward0", "ToCopyBackward0", "CloneBackward0", "ViewBackward0", "_DDPSinkBackward"})


class LossReader:
    """Reads the last operators of losses from their graphs."""

    def __init__(self, core: ModuleType) -> None:
        self._core = core
        self._num_passes = 0

    def facts_of(self, roots: Sequence[Any]) -> dict[str, Any]:
        """Return what a rule needs to know of a backward pass that begins here."""
        self._num_passes += 1
        if self._num_passes > _MOST_PASSES or len(roots) != 1:
            return {}
        root = roots[0]
        if getattr(root, "numel", int)() != 1 or self._core.is_compiling():
            return {}
        if root.grad_fn is None:
            return {"is_cut": bool(root.is_leaf and root.requires_grad)}
        factor = self._core.scales_of([root])[0][0]
        return {"factor": float(factor), "is_mean": _is_mean(root.grad_fn, root.output_nr)}


def _is_mean(node: Any, output: int) -> bool:
    """Return whether a loss is a mean, or a sum of means, that nothing but numbers multiply behind the last sum."""
    to_visit, is_below_sum = [(node, output)], False
    for _ in range(_MOST_NODES):
        if not to_visit:
            return True
        node, output = to_visit.pop()
        name = "" if node is None else type(node).__name__
        if name in _MEANS or (name in _LOSSES and getattr(node, "_saved_reduction", _MEAN) == _MEAN):
            continue
        edges = [edge for edge in getattr(node, "next_functions", ()) if edge[0] is not None]
        if name in _SUMS:
            is_below_sum = True
            to_visit += edges
        elif name in _COPIES and len(edges) > output:
            to_visit.append(edges[output])
        elif name in _FACTORS and len(edges) == 1 and not is_below_sum:
            to_visit += edges
        else:
            return False
    return False
