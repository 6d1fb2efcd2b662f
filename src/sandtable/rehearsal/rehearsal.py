"""A rehearsal: one captured run on one cluster, with its time, its figures and what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from sandtable import cluster as clusters
from sandtable.check.inspect import ABOUT_FIGURES, NO_TIME, RULES, inspect
from sandtable.check.meetings import MEETING_RULES
from sandtable.check.silencing import silence
from sandtable.cluster import Cluster
from sandtable.engine.compute.measured import MeasuredTable
from sandtable.engine.simulate import simulate
from sandtable.engine.stalls import STALL
from sandtable.engine.timeline import Timeline
from sandtable.engine.what_if import WhatIf
from sandtable.errors import ClusterError, FindingError, ReportError, SandtableError, SimulationError
from sandtable.findings import Evidence, Finding, Severity, worst_first
from sandtable.report.figures import SimulationEffort, summarise
from sandtable.report.files import (
    SUMMARY,
    Report,
    clear_stale,
    require_writable,
    write_comparison,
    write_page,
    write_report,
)
from sandtable.report.summary import Summary, UserInputs, load_summary
from sandtable.trace import Trace, progress_of
from sandtable.vgpu.stop import FAILURES

__all__ = ["Rehearsal", "compare", "load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """The result of simulating and checking a run."""

    timeline: Timeline | None = None
    error: SandtableError | None = None
    findings: tuple[Finding, ...] = ()
    silenced: tuple[Finding, ...] = ()
    effort: SimulationEffort = field(default_factory=SimulationEffort)


class Rehearsal:
    """A captured run on a cluster. Made by `rehearse`, `load`, or from another rehearsal by `on` and `what_if`.

    A run is simulated and checked once, when a result is first needed; `rehearse` does so at once. A run that the
    script, its ranks or the simulation ended early has an `error` and no timeline: reading its step time raises the
    error. `changes` are those of `what_if`.
    """

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        *,
        inputs: UserInputs | None = None,
        changes: WhatIf | None = None,
        error: SandtableError | None = None,
        summary: Summary | None = None,
        other_findings: tuple[Finding, ...] = (),
    ) -> None:
        """Make a rehearsal from its parts.

        Args:
            trace: what was captured.
            cluster: where it would run.
            inputs: facts that only the user knows, such as tokens per step.
            changes: what if a node were slow, links thinner, times noisy?
            error: what ended the capture early.
            summary: the figures of a rehearsal that was saved, which need not be computed again.
            other_findings: what other runs of the script have shown, such as those of parity.
        """
        self.trace = trace
        self.cluster = cluster
        self.inputs = inputs or UserInputs()
        self.changes = changes or WhatIf()
        self._capture_error = error
        self._saved = summary
        self._other_findings = other_findings

    def __repr__(self) -> str:
        steps = "1 step" if self.trace.num_steps == 1 else f"{self.trace.num_steps} steps"
        return f"Rehearsal({self.trace.world_size} ranks on {self.cluster.name}, {steps} captured)"

    @property
    def error(self) -> SandtableError | None:
        """What ended the run early, or None."""
        return self._outcome.error

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with the run, the worst first."""
        return self._outcome.findings

    @property
    def silenced(self) -> tuple[Finding, ...]:
        """Findings that a comment in the script or `UserInputs.ignored_rules` silences."""
        return self._outcome.silenced

    @property
    def has_time(self) -> bool:
        """Whether the time of a step is known."""
        return self.summary.timing is not None

    @property
    def step_seconds(self) -> float:
        """The time of one training step. Raises `error` if the run has one."""
        self._require_time()
        return self.summary.step_seconds

    @cached_property
    def timeline(self) -> Timeline:
        """When every rank does what. Raises `error` if the run has one."""
        self._require_time()
        return self._outcome.timeline or self._simulate().timeline or self._no_time()

    @cached_property
    def summary(self) -> Summary:
        """All figures of the run, as typed plain data."""
        if self._saved is not None:
            return self._saved
        outcome = self._outcome
        return summarise(
            self.trace,
            outcome.timeline,
            self.cluster,
            inputs=self.inputs,
            changes=self.changes,
            effort=outcome.effort,
            findings=outcome.findings,
            silenced=outcome.silenced,
        )

    def on(self, cluster: str | Path | Cluster, *, nodes: int | None = None) -> Rehearsal:
        """Return the same run on another cluster, with as many nodes as now unless `nodes` is given."""
        if not isinstance(cluster, Cluster):
            machines = clusters.load(cluster, nodes=_num_nodes(self.trace) if nodes is None else nodes)
            return self._again(machines, self.changes, replace(self.inputs, cluster=str(cluster)))
        machines = cluster if nodes is None else cluster.with_nodes(nodes)
        return self._again(machines, self.changes, replace(self.inputs, cluster=""))

    def what_if(
        self,
        *,
        slow_nodes: Mapping[int, float] | None = None,
        link_scale: Mapping[str, float] | None = None,
        jitter: float | None = None,
        seed: int | None = None,
    ) -> Rehearsal:
        """Return the same run with slow nodes, thinner links or noise, on top of earlier changes."""
        changes = WhatIf(
            slow_nodes=self.changes.slow_nodes if slow_nodes is None else slow_nodes,
            link_scale=self.changes.link_scale if link_scale is None else link_scale,
            jitter=self.changes.jitter if jitter is None else jitter,
            seed=self.changes.seed if seed is None else seed,
        )
        return self._again(self.cluster, changes, self.inputs)

    def with_findings(self, findings: Sequence[Finding]) -> Rehearsal:
        """Return the same run with findings that other runs of its script have shown."""
        return self._again(self.cluster, self.changes, self.inputs, (*self._other_findings, *findings))

    def save(self, out: str | Path, *, ranks: Sequence[int] = (), chakra: bool = False) -> Report:
        """Write the trace, the summary and the report into the directory `out`, in place of an earlier run's.

        The report's timeline shows `ranks`, by default a few that differ. `load(out)` returns the rehearsal again.
        """
        folder = Path(out)
        require_writable(folder, is_page=False)
        folder.mkdir(parents=True, exist_ok=True)
        self.trace.save(folder)
        report = self.save_report(folder, ranks=ranks, chakra=chakra)
        clear_stale(folder, report)
        return report

    def save_report(self, out: str | Path, *, ranks: Sequence[int] = (), chakra: bool = False) -> Report:
        """Write everything but the trace into the directory `out`."""
        timeline = self.timeline if self.has_time else None
        return write_report(self.summary, timeline, Path(out), ranks=ranks, chakra=chakra)

    def save_page(self, path: str | Path, *, ranks: Sequence[int] = ()) -> Path:
        """Write the report as one HTML file, and nothing else."""
        timeline = self.timeline if self.has_time else None
        return write_page(self.summary, timeline, Path(path), ranks=ranks)

    @cached_property
    def _outcome(self) -> _Outcome:
        if self._saved is not None:
            saved = self._saved
            return _Outcome(error=self._capture_error, findings=saved.findings, silenced=saved.silenced)
        outcome = _Outcome(error=self._capture_error)
        if self._capture_error is None and _is_complete(self.trace):
            try:
                outcome = self._simulate()
            except SimulationError as stall:
                outcome = _Outcome(error=stall)
        if outcome.error is None:
            about_figures = self._about_figures(outcome.timeline)
            error = _error_of(about_figures) if outcome.timeline is None else None
            outcome = replace(outcome, error=error, findings=about_figures)
        elif isinstance(outcome.error, FindingError):
            outcome = replace(outcome, findings=outcome.error.findings)
        return self._with_mistakes(outcome) if self.inputs.checks else outcome

    def _about_figures(self, timeline: Timeline | None) -> tuple[Finding, ...]:
        """Return how far the figures can be trusted."""
        findings = inspect(self.trace, timeline, rules=ABOUT_FIGURES)
        if self.inputs.needs_time:
            return findings
        notes = (replace(one, severity=Severity.NOTE) if one.rule in NO_TIME else one for one in findings)
        return worst_first(notes)

    def _with_mistakes(self, outcome: _Outcome) -> _Outcome:
        """Add what else is wrong with the run; what ended it cannot be silenced."""
        ends = outcome.error.findings if isinstance(outcome.error, FindingError) else ()
        known = {finding.rule for finding in ends}
        others = [finding for finding in outcome.findings if finding.rule not in known]
        mistakes = inspect(self.trace, outcome.timeline, rules=RULES.keys() - ABOUT_FIGURES - known)
        if any(finding.rule in MEETING_RULES for finding in mistakes):  # says why the simulated run stalls
            ends = tuple(finding for finding in ends if finding.rule != STALL)
        kept, silenced = silence((*others, *mistakes, *self._other_findings), self.inputs.ignored_rules)
        return replace(outcome, findings=worst_first((*ends, *kept)), silenced=silenced)

    def _simulate(self) -> _Outcome:
        wall, core = time.perf_counter(), time.process_time()
        measured = MeasuredTable.for_cluster(self.cluster)
        timeline = simulate(self.trace, self.cluster, what_if=self.changes, measured=measured)
        _ = timeline.step_ns  # raises if the run cannot be timed
        effort = SimulationEffort(wall_seconds=time.perf_counter() - wall, core_seconds=time.process_time() - core)
        return _Outcome(timeline=timeline, effort=effort)

    def _again(
        self, cluster: Cluster, changes: WhatIf, inputs: UserInputs, findings: tuple[Finding, ...] | None = None
    ) -> Rehearsal:
        return Rehearsal(
            self.trace,
            cluster,
            inputs=inputs,
            changes=changes,
            error=self._capture_error,
            other_findings=self._other_findings if findings is None else findings,
        )

    def _require_time(self) -> None:
        if self.error is not None:
            raise self.error
        if not _is_complete(self.trace):
            self._no_time()

    def _no_time(self) -> Timeline:
        reasons = "; ".join(finding.message for finding in self.findings) or "it did no work on the GPU"
        raise ReportError(f"a run must be captured whole and do some work for its step time to be known: {reasons}")


def load(path: str | Path, *, cluster: str | Path | Cluster | None = None) -> Rehearsal:
    """Open the directory of an earlier run, or a trace file, as a rehearsal.

    The figures are those that were saved. The timeline is simulated again when it is first used. With `cluster` the run
    is simulated there, as by `Rehearsal.on`; a run on a `Cluster` made in Python needs it, because it has no name.
    """
    folder = Path(path)
    trace = Trace.load(folder)
    summary = load_summary(folder) if (folder / SUMMARY).exists() else None
    error = _saved_error(summary) if summary is not None else _capture_failure(trace)
    inputs, changes = (summary.inputs, summary.what_if) if summary is not None else (None, None)
    if cluster is not None:
        machines = cluster if isinstance(cluster, Cluster) else clusters.load(cluster, nodes=_num_nodes(trace))
        return Rehearsal(trace, machines, inputs=inputs, changes=changes, error=error).on(cluster)
    name = summary.cluster.asked if summary is not None else trace.cluster
    nodes = summary.cluster.num_nodes if summary is not None else _num_nodes(trace)
    return Rehearsal(
        trace, _known_cluster(name, nodes, folder), inputs=inputs, changes=changes, error=error, summary=summary
    )


def compare(folders: Sequence[str | Path], out: str | Path) -> Path:
    """Write one HTML page that compares the runs in `folders`; the first one is the baseline."""
    if isinstance(folders, str | Path) or not folders:
        raise ReportError(f"runs to compare must be a list of directories, but got {folders!r}; for example ['a', 'b']")
    require_writable(Path(out))
    paths = [Path(folder) for folder in folders]
    for folder in paths:
        if not (folder / SUMMARY).exists():
            load(folder).save_report(folder)
    return write_comparison(paths, Path(out))


def _is_complete(trace: Trace) -> bool:
    """Return whether the work of every rank is known, and some rank made a step and did any work."""
    captured = sum(rank_class.size for rank_class in trace.classes)
    return trace.num_steps > 0 and len(trace.signatures) > 0 and captured == trace.world_size


def _known_cluster(name: str, nodes: int, folder: Path) -> Cluster:
    """Load the cluster of a saved run."""
    try:
        return clusters.load(name, nodes=nodes)
    except ClusterError as error:
        if name in clusters.names():
            raise
        raise ClusterError(
            f"the cluster of a saved run must be in the catalogue or a file, but '{name}' of {folder} is not here; "
            f"give one with --cluster, or in Python with load({str(folder)!r}, cluster=...)"
        ) from error


def _saved_error(summary: Summary) -> SandtableError | None:
    """Return what ended a saved run early; a capture of some ranks has no step time either, but a note that says so."""
    is_partial = any(
        finding.rule == "ranks-not-captured" and finding.severity is Severity.NOTE
        for finding in (*summary.findings, *summary.silenced)
    )
    return None if is_partial or summary.timing is not None else _error_of(summary.findings)


def _error_of(findings: Sequence[Finding]) -> FindingError | None:
    """Return the error that findings make of a run without a step time."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    return FindingError(*errors) if errors else None


def _capture_failure(trace: Trace) -> SandtableError | None:
    """Return what ended the capture early, as far as the trace alone shows it."""
    progress = [row for row in progress_of(trace) if row.stop_reason in FAILURES]
    if not progress:
        return None
    evidence = (
        Evidence(ranks=(row.rank,), text=f"stopped: {row.stop_reason}", file=row.file, line=row.line)
        for row in progress
    )
    return FindingError(
        Finding(
            rule="failed-capture",
            severity=Severity.ERROR,
            message="a run must be captured to its end for its step time to be known, but this capture failed",
            ranks=tuple(row.rank for row in progress),
            evidence=tuple(evidence),
            remedy="rehearse the script again to see why",
        )
    )


def _num_nodes(trace: Trace) -> int:
    return -(-trace.world_size // trace.ranks_per_node)
