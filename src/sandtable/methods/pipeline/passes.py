"""Passes: the atoms of a pipeline's work."""

from dataclasses import dataclass

__all__ = ["Pass"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A forward or backward pass of one minibatch through one stage, on one rank."""

    rank: int
    stage: int
    minibatch: int
    is_forward: bool
    version: int
    """Updates that the weights it used had seen."""
    start_s: float
    end_s: float
