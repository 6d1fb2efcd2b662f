"""The learning rate of each step: a straight rise, then half a wave of cosine down to nothing, or level ground."""

import math

from sandtable.study.settings import Training

__all__ = ["learning_rate"]


def learning_rate(training: Training, *, step: int, steps_per_epoch: int, epochs: int) -> float:
    """The rate of `step`, counted from 0 over all epochs. The rise takes a quarter of a short training at most."""
    peak, total = training.learning_rate, steps_per_epoch * epochs
    rise = min(training.warm_up_epochs, epochs / 4) * steps_per_epoch
    if step + 1 < rise:
        return peak * (step + 1) / rise
    if training.schedule == "constant":
        return peak
    return peak * 0.5 * (1 + math.cos(math.pi * (step + 1 - rise) / max(1.0, total - rise + 1)))
