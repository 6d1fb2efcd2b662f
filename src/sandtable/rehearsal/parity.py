"""Parity: run the user's script with real values on many ranks and on one, and compare what they compute."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from sandtable import cluster as clusters
from sandtable.check.parity import (
    Measured,
    ReferencePlan,
    losses_agree,
    parity_findings,
    plan_reference,
    plan_update,
    possible_fusions,
)
from sandtable.cluster import Cluster
from sandtable.errors import ParityError
from sandtable.events import Noticed
from sandtable.findings import Finding, place_text
from sandtable.launch import parse_command
from sandtable.rehearsal.script import LaunchOptions, make_job
from sandtable.trace.guide import Guide
from sandtable.trace.real_values import RankValues
from sandtable.vgpu import Job, Launcher, open_launcher
from sandtable.vgpu.real_values.settings import ValueSettings

__all__ = ["Parity", "ParityOptions", "check_parity", "check_parity_command", "merged_arguments"]

_RTOL, _HALF_RTOL = 1e-3, 6e-2
_MAX_RANKS = 64
_HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityOptions:
    """What to run and how to compare.

    Args:
        shrink: arguments that make the model small, for all runs: "--layers 2 --hidden 64". Each takes the place of
            the script's own of the same name.
        single: arguments for the run with one rank: "--tp 1 --pp 1".
        steps: how many updates to compare.
        rtol: how far a gradient may be off, relative to its norm; by default 0.1 %, and 6 % with half precision.
        fused: parts of parameters' names that hold several weights one behind the other: {"qkv": 3}.
    """

    shrink: str = ""
    single: str = ""
    steps: int = 2
    rtol: float | None = None
    fused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """The outcome: findings, and what was compared."""

    findings: tuple[Finding, ...]
    num_parameters: int
    num_updates: int
    num_streams: int
    num_replicas: int
    rtol: float
    has_dropout: bool = True
    """False if a single process draws its masks otherwise, so that all were compared without."""

    def describe(self) -> str:
        """Return in a sentence what was compared."""
        return (
            f"parity: {self.num_parameters} parameters, {self.num_updates} steps, {self.num_streams} data-parallel "
            f"streams against {self.num_replicas} single processes, tolerance {self.rtol:g}"
            + ("" if self.has_dropout else "; without dropout, whose masks a single process draws in another order")
        )


def check_parity(
    script: str | Path,
    *script_args: str,
    cluster: str | Path | Cluster = "dgx-a100",
    nodes: int | None = None,
    parity: ParityOptions | None = None,
    options: LaunchOptions | None = None,
) -> Parity:
    """Compare what `script` computes on all ranks of a cluster with what it computes on one.

    Raises ParityError if a run fails, or if what the runs compute cannot be compared.
    """
    parity, options = parity or ParityOptions(), options or LaunchOptions()
    machines = cluster if isinstance(cluster, Cluster) else clusters.load(cluster, nodes=nodes)
    arguments = merged_arguments(script_args, shlex.split(parity.shrink))
    job = make_job(
        str(script), arguments, machines, parity.steps, replace(options, ranks="all", skip_steps=1, follow_seconds=0.0)
    )
    with (
        nullcontext(options.launcher) if options.launcher is not None else open_launcher() as launcher,
        tempfile.TemporaryDirectory(prefix="sandtable-parity-") as directory,
    ):
        return _Runs(launcher, job, parity, options, Path(directory)).compare()


def check_parity_command(
    command: str | Sequence[str],
    *,
    cluster: str | Path | Cluster = "dgx-a100",
    nodes: int | None = None,
    parity: ParityOptions | None = None,
    options: LaunchOptions | None = None,
) -> Parity:
    """Compare what a launch command would start, such as "torchrun --nproc-per-node 4 train.py", with one process."""
    options = options or LaunchOptions()
    plan = parse_command(tuple(shlex.split(command) if isinstance(command, str) else command))
    machines = cluster if isinstance(cluster, Cluster) else clusters.load(cluster)
    world = plan.world(
        num_nodes=(1 if plan.is_plain else machines.num_nodes) if nodes is None else nodes,
        gpus_per_node=options.ranks_per_node or machines.gpus_per_node,
    )
    return check_parity(
        plan.script,
        *plan.script_args,
        cluster=machines.with_nodes(world.num_nodes),
        parity=parity,
        options=replace(
            options,
            ranks_per_node=world.ranks_per_node,
            is_module=plan.is_module,
            environment=plan.environment,
        ),
    )


def merged_arguments(arguments: Sequence[str], changes: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments with the changes behind them, which take the place of those of the same names."""
    kept = list(arguments)
    position = 0
    while position < len(changes):
        name = changes[position].partition("=")[0]
        following = position + 1
        is_flag = name.startswith("-")
        while is_flag and following < len(changes) and not _is_name(changes[following]):
            following += 1
        if is_flag or "=" in changes[position]:
            kept = _without(kept, name, num_values=following - position - 1)
        position = following
    return (*kept, *changes)


def _without(arguments: list[str], name: str, *, num_values: int) -> list[str]:
    kept: list[str] = []
    position = 0
    while position < len(arguments):
        if arguments[position] == name:
            position += 1
            for _ in range(num_values):
                position += position < len(arguments) and not _is_flag(arguments[position])
        else:
            if not arguments[position].startswith(f"{name}="):
                kept.append(arguments[position])
            position += 1
    return kept


def _is_name(word: str) -> bool:
    return _is_flag(word) or re.match(r"[+~\w.]+=", word) is not None


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit()


class _Runs:
    """The runs of one comparison, with one launcher."""

    def __init__(
        self, launcher: Launcher, job: Job, parity: ParityOptions, options: LaunchOptions, directory: Path
    ) -> None:
        self._launcher = launcher
        self._job = job
        self._parity = parity
        self._options = options
        self._directory = directory
        self._has_dropout = True

    def compare(self) -> Parity:
        """Make all runs, and return what differs."""
        job = self._job
        if job.world_size > _MAX_RANKS:
            raise ParityError(
                f"parity runs every rank as a process, so there must be at most {_MAX_RANKS} ranks, but got "
                f"{job.world_size}; give fewer: mistakes of scale show with 2 ranks along each axis"
            )
        parallel = self._run(job, "all ranks")
        single = replace(
            job,
            world_size=1,
            nproc_per_node=1,
            cluster=job.cluster.with_nodes(1),
            script_args=merged_arguments(job.script_args, shlex.split(self._parity.single)),
        )
        outline, *others = self._run(single, "one rank")
        if others:
            raise ParityError(
                f"the single run must be one process, but the script starts {len(others) + 1} ranks itself; say how "
                "many with --single, if it has a flag for that"
            )
        rtol = self._tolerance([*parallel, outline])
        drawn = parallel
        plan, replicas = self._reference(parallel, outline, single, rtol)
        if plan.unmatched_masks:
            self._has_dropout = False
            parallel, outline = self._run(job, "all ranks without dropout"), self._run(single, "one rank")[0]
            plan, replicas = self._reference(parallel, outline, single, rtol)
        guide = plan_update(plan, replicas)
        update = replicas[0] if guide is None else self._run(single, "one rank with the mean gradient", guide)[0]
        measured = Measured(
            parallel=tuple(parallel),
            replicas=tuple(replicas),
            update=update,
            plan=plan,
            rtol=rtol,
            drawn=tuple(drawn),
        )
        return _outcome(measured, plan, has_dropout=self._has_dropout)

    def _reference(
        self, parallel: Sequence[RankValues], outline: RankValues, single: Job, rtol: float
    ) -> tuple[ReferencePlan, list[RankValues]]:
        """Return the plan and its runs; the first with an equal loss of those that differ in what parts hold."""
        plan = plan_reference(parallel, outline, fused=self._parity.fused)
        replicas = self._replicas(plan, single)
        if losses_agree(parallel, replicas, rtol):
            return plan, replicas
        for fused in () if self._parity.fused else possible_fusions(plan.layout):
            other = plan_reference(parallel, outline, fused=fused)
            others = self._replicas(other, single)
            if losses_agree(parallel, others, rtol):
                return other, others
        if plan.layout.is_by_order:
            raise ParityError(
                "parameters of pipeline stages must have the single process's names, or its order, but matched in "
                "order they give another loss; let every stage name its layers by their number in the whole model"
            )
        return plan, replicas

    def _replicas(self, plan: ReferencePlan, single: Job) -> list[RankValues]:
        count = len(plan.guides)
        return [
            self._run(single, f"one rank with samples {number + 1} of {count}", guide)[0]
            for number, guide in enumerate(plan.guides)
        ]

    def _run(self, job: Job, what: str, guide: Guide | None = None) -> list[RankValues]:
        folder = Path(tempfile.mkdtemp(dir=self._directory))
        if guide is not None:
            guide.save(folder / "guide")
        values = ValueSettings(
            directory=str(folder),
            guide=str(folder / "guide") if guide is not None else "",
            has_dropout=self._has_dropout,
        )
        self._options.listen(Noticed(text=f"parity: running with {what}"))
        quiet = replace(job, values=values, observes=False, follow_seconds=0.0, num_epochs=0)
        captured = self._launcher.capture(quiet)
        if captured.error is not None:
            remedy = "make one process of it with --single" if job.world_size == 1 else "check --shrink"
            raise ParityError(
                f"the script must run with {what}, but it fails; {remedy}:\n{captured.error}"
            ) from captured.error
        ranks = [RankValues.load(values.path(rank)) for rank in range(captured.trace.world_size)]
        _require_values(ranks, what)
        return ranks

    def _tolerance(self, runs: Sequence[RankValues]) -> float:
        if self._parity.rtol is not None:
            return self._parity.rtol
        is_half = any(run.is_half or any(piece.dtype in _HALF for piece in run.pieces) for run in runs)
        return _HALF_RTOL if is_half else _RTOL


def _require_values(ranks: Sequence[RankValues], what: str) -> None:
    """Raise an error if the ranks made no step, or used what cannot be computed on the host."""
    for values in ranks:
        if values.unknown:
            name, (file, line) = values.unknown[0]
            raise ParityError(
                f"every operator must have a kernel on the CPU, but {name} has none for these tensors, or they are "
                f"larger than 512 MiB ({place_text(file, line)}, with {what}); switch it off or make the model smaller "
                "with --shrink"
            )
        if not values.num_updates:
            raise ParityError(f"a run must update its parameters with an optimizer of torch, but with {what} none did")
        if not values.gradients and not values.unclipped_gradients:
            raise ParityError(
                f"updates must use gradients, but with {what} no parameter of rank {values.rank} has one when the "
                "optimizer steps; let the backward pass before it reduce them"
            )
        if not any(piece.is_held for piece in values.pieces):
            raise ParityError(
                f"an optimizer must hold the model's parameters, but with {what} it holds others; run without master "
                "weights or a framework's own optimizer, with --shrink"
            )


def _outcome(measured: Measured, plan: ReferencePlan, *, has_dropout: bool) -> Parity:
    return Parity(
        findings=parity_findings(measured),
        num_parameters=len(plan.layout.shapes),
        num_updates=plan.num_updates,
        num_streams=len(plan.streams),
        num_replicas=len(measured.replicas),
        rtol=measured.rtol,
        has_dropout=has_dropout,
    )
