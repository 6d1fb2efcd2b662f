"""Dropout: switched off where a single process cannot draw the masks of many ranks."""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["leave_nothing_out"]

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def leave_nothing_out() -> None:
    """Have all of torch's ways to drop elements return them all."""
    import torch
    from torch.nn import functional

    for name in _DROPOUTS:
        setattr(functional, name, lambda tensor, *args, **options: tensor)
    for name in ("dropout", "dropout_", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"):
        setattr(torch, name, lambda tensor, *args, **options: tensor)
    functional.scaled_dot_product_attention = _without_dropout(functional.scaled_dot_product_attention)


def _without_dropout(attention: Any) -> Any:
    @functools.wraps(attention)
    def attend(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **options: Any
    ) -> Any:
        return attention(query, key, value, attn_mask, 0.0, *args, **options)

    return attend
