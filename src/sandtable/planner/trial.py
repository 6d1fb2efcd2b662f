"""A trial: one configuration, rehearsed, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Outcome", "Trial", "TrialFigures", "TrialState"]


class TrialState(StrEnum):
    """What came of a trial."""

    PRICED = "priced"
    REJECTED = "rejected"
    OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFigures:
    """The figures by which configurations are compared, of one typical step."""

    step_seconds: float
    num_gpus: int
    memory_bytes: int
    """The most that a rank's allocator reserves."""
    capacity_bytes: int
    mfu: float | None
    mfu_dtype: str
    model_flops: int
    parts: Mapping[str, float]
    """Seconds of each part of the step, the mean over ranks; they add up to the step."""
    tokens_per_step: int | None = None
    usd_per_step: float | None = None
    num_captured: int = 0

    @property
    def tokens_per_s_per_gpu(self) -> float | None:
        """Tokens per second and GPU, where the tokens of a step are known."""
        return None if self.tokens_per_step is None else self.tokens_per_step / self.step_seconds / self.num_gpus

    @property
    def memory_share(self) -> float:
        """The fullest card's reserved share."""
        return self.memory_bytes / self.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of rehearsing a configuration: figures, or the reason why there are none."""

    state: TrialState
    figures: TrialFigures | None = None
    reason: str = ""
    place: str = ""
    """The line of the script that raised."""
    needed_bytes: int | None = None
    """What a rank would reserve on a card with enough memory, for a configuration that runs out of it."""
    seconds: float = 0.0
    """How long the rehearsal took."""

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Outcome:
        """Invert `to_dict`."""
        figures = data["figures"]
        return cls(
            **{
                **data,
                "state": TrialState(data["state"]),
                "figures": None if figures is None else TrialFigures(**figures),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A configuration, the command that launches it, and what came of it."""

    values: Mapping[str, Any]
    command: tuple[str, ...]
    outcome: Outcome

    @property
    def figures(self) -> TrialFigures:
        """The figures of a trial that was priced."""
        assert self.outcome.figures is not None
        return self.outcome.figures

    @property
    def name(self) -> str:
        """The configuration in words."""
        return " ".join(f"{name}={value}" for name, value in self.values.items())
