"""Rehearse: run a script on virtual GPUs and predict what it would do on a cluster."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from sandtable import cluster as clusters
from sandtable.check.rule_pages import require_rule
from sandtable.cluster import Cluster, Topology
from sandtable.engine.what_if import WhatIf
from sandtable.errors import LaunchError, SandtableError, WhatIfError
from sandtable.events import CaptureEnded, Failed, Finished, Listener, Priced, ignore
from sandtable.launch import FixedEnvironment, LauncherEnvironment, TorchrunEnvironment, is_notebook, parse_command
from sandtable.rehearsal.rehearsal import Rehearsal
from sandtable.rehearsal.store import CaptureStore
from sandtable.report.files import clear_run, require_writable
from sandtable.report.summary import UserInputs
from sandtable.trace import Trace
from sandtable.vgpu import CaptureResult, Job, Launcher, Limits, Routing, open_launcher
from sandtable.vgpu.routing import BALANCED

__all__ = ["LaunchOptions", "ResolvedCommand", "make_job", "rehearse", "rehearse_command", "resolve_command"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How to capture the script, where the defaults do not fit.

    Args:
        ranks_per_node: processes per node; by default one per GPU, and for a notebook one without a launcher.
        ranks: the ranks to run: "auto" runs one of each class of equal ranks, "all" runs every rank.
        is_module: whether the script is a module's name, as with `python -m`.
        max_operators: stop a rank after this many operators without an optimizer step.
        step_marker: a function as "module:function", each of whose returns ends a step; `sandtable.step()` needs none.
        skip_steps: how many of the captured steps come before those that are timed: a warm-up; the first always does.
        limits: how many ranks to run and to sample with `ranks="auto"`.
        routing: which experts the routers of a mixture choose: "balanced", "zipf:1.2", or a file with weights.
        share_imports: import the script's libraries once for all ranks after the first, where that is safe.
        without: packages that stay missing if they are not installed, though there is a replacement.
        costs: a file that describes kernels which cannot run here, with `sandtable.cost`.
        checks: look for mistakes; without, less is recorded and only the figures are checked.
        command: the command line to note in the report.
        environment: what the launcher gives each rank; by default torchrun's variables.
        chakra: write Chakra execution traces, too.
        listen: receives every event (see `sandtable.events`).
        launcher: a running launcher; many rehearsals with one are cheaper.
        store: where to look for the capture first, and to keep it.
        num_epochs: after the captured steps, follow the script without records until its data loaders have been read
            this often, to see whether ranks still meet at the end of an epoch; by default for `follow_seconds`.
        follow_seconds: how long to follow a script whose steps are quick; 0 to stop after the captured steps.
        few_ranks: with `ranks="auto"`, run every rank where there are at most this many and that takes only seconds.
    """

    ranks_per_node: int | None = None
    ranks: Literal["auto", "all"] | tuple[int, ...] = "auto"
    is_module: bool = False
    max_operators: int = 1_000_000
    step_marker: str = ""
    skip_steps: int = 1
    limits: Limits = field(default_factory=Limits)
    routing: str = BALANCED
    share_imports: bool = True
    without: tuple[str, ...] = ()
    costs: str | Path = ""
    checks: bool = True
    command: tuple[str, ...] = ()
    environment: LauncherEnvironment = field(default_factory=TorchrunEnvironment)
    chakra: bool = False
    listen: Listener = ignore
    launcher: Launcher | None = None
    store: CaptureStore | None = None
    num_epochs: int = 0
    follow_seconds: float = 2.0
    few_ranks: int = 16


def rehearse(
    script: str | Path,
    *script_args: str,
    cluster: str | Path | Cluster = "dgx-a100",
    nodes: int | None = None,
    steps: int = 3,
    out: str | Path | None = None,
    inputs: UserInputs | None = None,
    what_if: WhatIf | None = None,
    options: LaunchOptions | None = None,
) -> Rehearsal:
    """Rehearse `script` with its own `script_args`, unmodified, on the virtual GPUs of a cluster.

    `cluster` is a name in the catalogue, a TOML file or a `Cluster`; `nodes` of it are used, and `steps` optimizer
    steps are captured. With `out` everything is saved in that directory, in place of an earlier run. `inputs` are facts
    that only the user knows, such as tokens per step; `what_if` changes the cluster without a new capture.

    A script that fails, runs out of memory or deadlocks gives a rehearsal, too: with `error`, `findings`, and a trace
    of how far each rank got. Raises LaunchError, ClusterError or ReportError if nothing can be started or written.
    """
    _require_type(script, str | Path, "the script must be a path", 'such as "train.py"')
    _require_type(nodes, Integral | None, "nodes must be a whole number", "such as nodes=2")
    _require_type(steps, Integral, "steps must be a whole number", "such as steps=3")
    _require_type(inputs, UserInputs | None, "inputs must be UserInputs", "such as UserInputs(tokens_per_step=65536)")
    _require_type(what_if, WhatIf | None, "what_if must be a WhatIf", "such as WhatIf(jitter=0.05)")
    _require_type(options, LaunchOptions | None, "options must be LaunchOptions", 'such as LaunchOptions(ranks="all")')
    options = options or LaunchOptions()
    inputs = replace(inputs or UserInputs(), checks=options.checks)
    for rule in inputs.ignored_rules:
        require_rule(rule)
    if isinstance(cluster, Cluster):
        machines = cluster if nodes is None else cluster.with_nodes(nodes)
    else:
        machines, inputs = clusters.load(cluster, nodes=nodes), replace(inputs, cluster=str(cluster))
    job = make_job(str(script), script_args, machines, steps, options)
    changes = what_if or WhatIf()
    _require_possible(changes, job)
    folder = Path(out) if out is not None else None
    if folder is not None:
        require_writable(folder, is_page=False)
        clear_run(folder)
    captured = _capture(job, options)
    machines = machines.with_nodes(captured.trace.num_nodes)  # a script that starts its ranks itself may name more
    options.listen(CaptureEnded())
    with _saving(captured.trace, folder):
        run = Rehearsal(captured.trace, machines, inputs=inputs, changes=changes, error=captured.error)
        if run.has_time:
            options.listen(Priced(step_seconds=run.step_seconds))
        if folder is not None:
            run.save_report(folder, chakra=options.chakra)
    _announce_end(run, options.listen)
    return run


def rehearse_command(
    command: str | Sequence[str],
    *,
    cluster: str | Path | Cluster = "dgx-a100",
    nodes: int | None = None,
    steps: int = 3,
    out: str | Path | None = None,
    inputs: UserInputs | None = None,
    what_if: WhatIf | None = None,
    options: LaunchOptions | None = None,
) -> Rehearsal:
    """Rehearse what a launch command would start, such as "torchrun --nproc-per-node 8 train.py --batch-size 32".

    The command is read and not executed: script, nodes, ranks and the environment of each rank come from its options
    and the files they name. `nodes` and `options.ranks_per_node` must agree with it, or fill in what it leaves open.
    All else is as for `rehearse`. Raises LaunchError also if the command or one of its options is not known.
    """
    words = tuple(shlex.split(command) if isinstance(command, str) else command)
    resolved = resolve_command(words, cluster=cluster, nodes=nodes, options=options or LaunchOptions())
    return rehearse(
        resolved.script,
        *resolved.script_args,
        cluster=cluster,
        nodes=resolved.nodes,
        steps=steps,
        out=out,
        inputs=inputs,
        what_if=what_if,
        options=resolved.options,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedCommand:
    """What a launch command starts on a cluster: the arguments of `rehearse`."""

    script: str
    script_args: tuple[str, ...]
    nodes: int
    options: LaunchOptions


def resolve_command(
    words: Sequence[str], *, cluster: str | Path | Cluster, nodes: int | None, options: LaunchOptions
) -> ResolvedCommand:
    """Read a launch command, and fill in from the cluster what it leaves open."""
    plan = parse_command(words)
    machines = cluster if isinstance(cluster, Cluster) else clusters.load(cluster)
    open_nodes = 1 if plan.is_plain else machines.num_nodes
    world = plan.world(
        num_nodes=open_nodes if nodes is None else nodes,
        gpus_per_node=options.ranks_per_node or machines.gpus_per_node,
    )
    plan.require(world, num_nodes=nodes, ranks_per_node=options.ranks_per_node)
    return ResolvedCommand(
        script=plan.script,
        script_args=plan.script_args,
        nodes=world.num_nodes,
        options=replace(
            options,
            ranks_per_node=world.ranks_per_node,
            is_module=plan.is_module,
            command=options.command or tuple(words),
            environment=plan.environment,
        ),
    )


def make_job(script: str, script_args: tuple[str, ...], cluster: Cluster, steps: int, options: LaunchOptions) -> Job:
    """Return the job that `rehearse` captures."""
    ranks_per_node, environment = options.ranks_per_node, options.environment
    if ranks_per_node is None and not options.is_module and is_notebook(script):
        ranks_per_node, environment = 1, FixedEnvironment()  # a notebook has one kernel, which no launcher starts
    elif ranks_per_node is None:
        ranks_per_node = cluster.gpus_per_node
    return Job(
        script=script,
        script_args=tuple(map(str, script_args)),
        is_module=options.is_module,
        world_size=cluster.num_nodes * ranks_per_node,
        nproc_per_node=ranks_per_node,
        cluster=cluster,
        num_steps=steps,
        num_skipped_steps=options.skip_steps,
        max_operators=options.max_operators,
        step_marker=options.step_marker,
        ranks=options.ranks if isinstance(options.ranks, str) else tuple(options.ranks),
        limits=options.limits,
        routing=Routing.parse(options.routing),
        share_imports=options.share_imports,
        without=tuple(options.without),
        costs=str(options.costs),
        observes=options.checks,
        command=options.command,
        launcher_environment=environment,
        num_epochs=options.num_epochs,
        follow_seconds=options.follow_seconds if options.checks else 0.0,
        few_ranks=options.few_ranks if options.checks else 0,
    )


def _capture(job: Job, options: LaunchOptions) -> CaptureResult:
    stored = options.store.find(job) if options.store is not None else None
    if stored is not None:
        return CaptureResult(trace=stored, error=None)
    with nullcontext(options.launcher) if options.launcher is not None else open_launcher() as launcher:
        captured = launcher.capture(job, listen=options.listen)
    if options.store is not None and captured.error is None:
        options.store.keep(job, captured.trace)
    return captured


def _require_type(value: object, kind: Any, rule: str, remedy: str) -> None:
    if not isinstance(value, kind):
        raise LaunchError(f"{rule}, but got {value!r}; {remedy}")


def _require_possible(changes: WhatIf, job: Job) -> None:
    """Reject changes before the capture that the simulation would reject after it."""
    for node in changes.slow_nodes:
        if node >= job.num_nodes:
            raise WhatIfError(
                f"a slow node must be one of the {job.num_nodes} nodes of the run, but got {node}; "
                f"choose one from 0 to {job.num_nodes - 1}"
            )
    if changes.link_scale:
        Topology(job.cluster, ranks_per_node=job.nproc_per_node, num_ranks=job.world_size).scaled(changes.link_scale)


@contextmanager
def _saving(trace: Trace, folder: Path | None) -> Iterator[None]:
    """Save the trace while the block runs: compressing it takes as long as simulating it."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(1) as executor:
        saving = executor.submit(trace.save, folder)
        yield
        saving.result()


def _announce_end(run: Rehearsal, listen: Listener) -> None:
    error: SandtableError | None = run.error
    listen(Finished(findings=run.findings) if error is None else Failed(message=str(error), findings=run.findings))
