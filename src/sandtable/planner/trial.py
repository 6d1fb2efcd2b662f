"""A trial: one configuration, rehearsed, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

from sandtable import cluster as clusters
from sandtable.errors import LaunchError, SandtableError
from sandtable.findings import Finding, Severity
from sandtable.launch import is_launch_command
from sandtable.rehearsal import LaunchOptions, Rehearsal, rehearse, rehearse_command
from sandtable.report import Summary, UserInputs
from sandtable.report.times import PARTS, Parts

__all__ = ["Outcome", "Trial", "TrialFigures", "TrialState", "TrialTask", "run_trial"]


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
class TrialTask:
    """What a worker needs to rehearse a configuration: plain data, which can go to another process or machine.

    With `checks` the rehearsal is a full one, with all rules, and saved in `out`. With `memory_factor` cards have so many
    times their memory, which shows how much a configuration needs that does not fit.
    """

    words: tuple[str, ...]
    cluster: str
    nodes: int | None = None
    steps: int = 3
    inputs: UserInputs = field(default_factory=UserInputs)
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    checks: bool = False
    out: str | None = None
    memory_factor: float = 1.0

    @property
    def is_command(self) -> bool:
        """Whether the words are a launch command, and not a script with its arguments."""
        return not self.launch.is_module and is_launch_command(self.words[0])

    def rehearse(self) -> Rehearsal:
        """Rehearse the configuration."""
        start = partial(rehearse_command, self.words) if self.is_command else partial(rehearse, *self.words)
        is_larger = self.memory_factor != 1
        return start(
            cluster=clusters.load(self.cluster).with_memory(self.memory_factor) if is_larger else self.cluster,
            nodes=self.nodes if self.is_command else self.nodes or 1,
            steps=self.steps,
            inputs=self.inputs,
            options=self.launch if self.checks else replace(self.launch, checks=False, runs_few=False),
            out=self.out,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A configuration, the command it makes, and what came of it."""

    values: Mapping[str, Any]
    task: TrialTask
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


def run_trial(task: TrialTask) -> Outcome:
    """Rehearse a configuration and return what came of it. A script that fails is an outcome, too."""
    start = time.perf_counter()
    try:
        run = task.rehearse()
        outcome = _outcome(run)
    except LaunchError as error:  # the launcher itself refuses these numbers
        outcome = Outcome(state=TrialState.REJECTED, reason=str(error))
    return replace(outcome, seconds=time.perf_counter() - start)


def _outcome(run: Rehearsal) -> Outcome:
    worst = next((finding for finding in run.findings if finding.severity is Severity.ERROR), None)
    if worst is not None:
        is_full = worst.rule == "out-of-memory"
        state = TrialState.OUT_OF_MEMORY if is_full else TrialState.REJECTED
        return Outcome(state=state, reason=_reason(worst), place=_place(worst))
    error: SandtableError | None = run.error
    if error is not None or not run.has_time:
        return Outcome(state=TrialState.REJECTED, reason=str(error or "the run has no step time"))
    return Outcome(state=TrialState.PRICED, figures=_figures(run.summary))


def _reason(finding: Finding) -> str:
    """Return what a script said when it gave up, or what the finding says."""
    if finding.evidence and finding.rule in ("script-error", "rank-raised", "out-of-memory"):
        return finding.evidence[0].text.removeprefix("raised ")
    return finding.message


def _place(finding: Finding) -> str:
    return finding.evidence[0].place if finding.evidence else ""


def _figures(summary: Summary) -> TrialFigures:
    timing = summary.require_timing()
    fullest = max(summary.memory, key=lambda rank_class: rank_class.use.peak_reserved_bytes)
    parts = timing.breakdown.mean.parts
    throughput = timing.throughput
    return TrialFigures(
        step_seconds=timing.step_seconds,
        num_gpus=summary.world_size,
        memory_bytes=fullest.use.peak_reserved_bytes,
        capacity_bytes=fullest.use.capacity_bytes,
        mfu=timing.efficiency.mfu,
        mfu_dtype=timing.efficiency.dtype,
        model_flops=timing.efficiency.model_flops,
        parts=_flat(parts),
        tokens_per_step=None if throughput is None else throughput.tokens_per_step,
        usd_per_step=timing.cost.usd_per_step,
        num_captured=len(summary.capture.captured_ranks),
    )


def _flat(parts: Parts) -> dict[str, float]:
    """Return the parts as one table; communication has one row per axis."""
    flat = {name: getattr(parts, name) for name in (*PARTS, "other") if name != "communication"}
    flat |= {f"communication {axis}": seconds for axis, seconds in parts.communication.items()}
    return {name: seconds for name, seconds in flat.items() if seconds}
