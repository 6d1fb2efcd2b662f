"""Weights: whether gradients are a mean of the streams', but not a plain one, as a mean over all tokens is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.check.parity.differences import Measured
from sandtable.trace.real_values import RankValues

__all__ = ["stream_weights"]

Array = npt.NDArray[Any]
_LEAST = 0.05
"""A stream must have this share of its fair one: else it was left out."""


def stream_weights(measured: Measured, update: int) -> tuple[float, ...] | None:
    """Return the weight of each single process in all gradients of an update; None if they are no sum of all.

    The weights of a mean add up to 1.
    """
    for kind in ("unclipped_gradients", "gradients"):
        rows = list(_rows(measured, update, kind))
        if not rows:
            continue
        gradients = np.concatenate([gradient for gradient, _ in rows])
        parts = np.concatenate([row for _, row in rows], axis=1).T
        weights, *_ = np.linalg.lstsq(parts, gradients, rcond=None)
        rest = np.linalg.norm(gradients - parts @ weights)
        is_mean = min(weights) >= _LEAST * weights.sum() / len(weights) > 0
        return tuple(map(float, weights)) if is_mean and rest <= measured.rtol * np.linalg.norm(gradients) else None
    return None


def _rows(measured: Measured, update: int, kind: str) -> Iterator[tuple[Array, Array]]:
    """Yield a rank's gradient of a parameter, and what each single process has there."""
    layout, replicas = measured.plan.layout, measured.replicas
    for name, shape in layout.shapes.items():
        wholes = [_gradient(replica, kind, update, name) for replica in replicas]
        for rank, own, slot in layout.holders(name):
            gradient = _gradient(measured.parallel[rank], kind, update, own)
            known = [whole for whole in wholes if whole is not None]
            if gradient is not None and gradient.size and len(known) == len(replicas):
                parts = [slot.read(whole.reshape(shape)).reshape(-1) for whole in known]
                if parts[0].size == gradient.size:
                    yield gradient.reshape(-1).astype(np.float64), np.stack(parts).astype(np.float64)


def _gradient(values: RankValues, kind: str, update: int, name: str) -> Array | None:
    found: Array | None = getattr(values, kind).get((update, name))
    return found
