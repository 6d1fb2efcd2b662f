"""Losses of liger-kernel that compare models, of which a replacement has only the names.

Trainers of TRL import them wherever liger-kernel is there, and make one only if asked to.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

__all__ = ["fill_chunked_losses"]

_NAMES = ("CPO", "CosineSimilarity", "DPO", "GRPO", "JSD", "KTO", "ORPO", "SimPO")


class _ChunkedLoss:
    def __init__(self, *args: Any, **options: Any) -> None:
        name = type(self).__name__
        raise ModuleNotFoundError(
            f"{name} needs liger_kernel, which is not installed here, and its replacement has no such loss; install it "
            "(pip install --no-deps liger-kernel), or leave out the option that uses it"
        )


def fill_chunked_losses(module: ModuleType) -> None:
    """Put a class for each loss into `liger_kernel.chunked_loss`."""
    for name in _NAMES:
        full = f"LigerFusedLinear{name}Loss"
        setattr(module, full, type(full, (_ChunkedLoss,), {"__module__": module.__name__}))
