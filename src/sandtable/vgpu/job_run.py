"""The run of a job: one session, or more if ranks must run together, or if the script starts its ranks itself."""

import os
import shlex
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sandtable.errors import FindingError, LaunchError, MismatchError, SandtableError
from sandtable.events import Event, Listener, Noticed, RankPrinted
from sandtable.launch import FixedEnvironment, LayeredEnvironment, NodeEnvironment, OwnEnvironment, parse_command
from sandtable.trace import Note, Observations, RankRecords
from sandtable.vgpu.fork_client import ForkClient
from sandtable.vgpu.fork_protocol import CommandStarted, ScriptRelaunched
from sandtable.vgpu.node_memory import remove_node_memory
from sandtable.vgpu.rank_run import observations_path
from sandtable.vgpu.session import RankStarter, Session
from sandtable.vgpu.settings import MOST_FEW_RANKS, Job, RankTask, ScriptSettings
from sandtable.vgpu.sharded_ranks import ShardedRanks
from sandtable.vgpu.spawned_ranks import RanksLaunched, ScriptLaunched, SpawnedRanks
from sandtable.vgpu.stop import SCRIPT_ENDED

__all__ = ["FinishedSession", "run_job"]

_MAX_ATTEMPTS = 3

_FEW_OWN_RANKS = 8
"""So many ranks that the script starts itself all run."""

_FEW_SECONDS = 10.0
"""All ranks run, if they are few, where that takes no longer than this."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FinishedSession:
    """A session that has ended, its job, its classes, and the records of their representatives."""

    job: Job
    session: Session
    classes: Mapping[int, tuple[int, ...]]
    records: Mapping[int, RankRecords]
    error: SandtableError | None
    observations: Mapping[int, Observations]
    """Of every captured rank."""
    notes: tuple[Note, ...] = ()

    @property
    def num_steps(self) -> int:
        """The steps that every captured rank has made."""
        return min((outcome.num_steps for outcome in self.session.outcomes.values()), default=0)

    @property
    def is_last(self) -> bool:
        """Whether a rank failed, or was stopped because enough of it was captured."""
        reasons = {outcome.stop_reason for outcome in self.session.outcomes.values()}
        return self.error is not None or reasons != {SCRIPT_ENDED}


def run_job(job: Job, client: ForkClient, listen: Listener, directory: Path) -> FinishedSession:
    """Run the job's ranks until the work of every rank is known; keep files in `directory`."""
    client.begin_launch(
        ScriptSettings(
            script=job.script,
            is_module=job.is_module,
            script_args=job.script_args,
            environment=dict(os.environ),
            directory=os.getcwd(),
            rank_variables=job.rank_variables,
        ),
        directory,
        shares_imports=job.may_share_imports,
    )
    if not job.starts_own_ranks:
        return _run_ranks(job, client, listen, directory)
    spawned = SpawnedRanks(job, client, listen)
    printed = _PrintedLines(listen)
    try:
        return _run_own_ranks(job, spawned, printed, directory)
    except ScriptLaunched as launched:
        report = launched.report
    finally:
        spawned.close()
    if isinstance(report, CommandStarted):
        listen(Noticed(text=f"the script starts '{shlex.join(report.words)}': this command is rehearsed"))
        return run_job(_commanded(job, report), client, printed.once, directory)
    job = _relaunched(job, report)
    listen(Noticed(text=f"the script starts itself {job.nproc_per_node} times per node: these are the ranks"))
    return _run_ranks(job, client, printed.once, directory)


def _run_ranks(job: Job, client: ForkClient, listen: Listener, directory: Path) -> FinishedSession:
    """Run the ranks that matter; or all of them, where a first look shows that this takes only seconds."""
    if not job.may_run_all:
        return _run_sessions(job, client, listen, _tasks(job, directory))
    printed = _PrintedLines(listen)
    look = replace(job, follow_seconds=0.0, num_epochs=0)
    first = _run_sessions(look, client, printed, _tasks(look, directory))
    if not _takes_only_seconds(job, first):
        return first
    first.session.forget_files()
    whole = replace(job, ranks="all")
    return _run_sessions(whole, client, printed.once, _tasks(whole, directory / "all"))


def _takes_only_seconds(job: Job, first: FinishedSession) -> bool:
    """Return whether all ranks can run at the same time, as far as those of a first look show."""
    seconds = max((records.core_seconds for records in first.records.values()), default=0.0)
    held = max((records.memory.host_bytes for records in first.records.values()), default=0)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    is_quick = seconds * job.world_size / (os.cpu_count() or 1) <= _FEW_SECONDS
    return is_quick and (job.world_size <= MOST_FEW_RANKS or held * job.world_size <= free // 2)


def _run_own_ranks(job: Job, spawned: SpawnedRanks, listen: Listener, directory: Path) -> FinishedSession:
    """Run a script that may start its ranks itself; of several launches, return the first with the most steps."""
    parents = job
    if job.num_nodes > 1:
        layers = (NodeEnvironment(), job.launcher_environment)
        parents = replace(job, launcher_environment=LayeredEnvironment(layers))
    parent_tasks = _tasks(parents, directory / "parents", offer_address=spawned.address)
    spawned.run_parents_by(parent_tasks)
    try:
        return _run_sessions(parents, spawned, listen, parent_tasks)
    except RanksLaunched as launched:
        spawned.adopt(launched.parents)
        num_processes: int | None = launched.num_processes
    finished: list[FinishedSession] = []
    while num_processes is not None:
        launch = _own_launch(job, num_processes)
        listen(Noticed(text=f"the script starts {num_processes} processes per node: these are the ranks"))
        spawned.begin(launch)
        finished.append(_run_sessions(launch, spawned, listen, _tasks(launch, directory)))
        if finished[-1].is_last:
            return finished[-1]
        try:
            num_processes = spawned.next_launch()
        except FindingError as error:
            return replace(finished[-1], error=error)
    best = max(finished, key=lambda session: session.num_steps)
    if len(finished) == 1:
        return best
    text = f"the script launches processes {len(finished)} times; this is launch {finished.index(best) + 1}"
    return replace(best, notes=(Note("several launches", text),))


def _own_launch(job: Job, num_processes: int) -> Job:
    """Return the job of ranks that the script starts itself. It starts them once, so there is no first look at them."""
    launch = replace(job, world_size=job.num_nodes * num_processes, nproc_per_node=num_processes)
    if launch.may_run_all and launch.world_size <= _FEW_OWN_RANKS:
        launch = replace(launch, ranks="all")
    return launch if launch.ranks == "all" else replace(launch, follow_seconds=0.0, num_epochs=0)


def _relaunched(job: Job, report: ScriptRelaunched) -> Job:
    """Return the job of a script that has started itself again as the other ranks of its node."""
    per_node, world_size = len(report.rank_variables), report.world_size
    num_nodes = world_size // per_node
    if world_size % per_node or job.num_nodes not in (1, num_nodes):
        raise LaunchError(
            f"the script must agree with --nnodes, but it starts {per_node} ranks per node for a world of {world_size} "
            f"ranks, on {job.num_nodes} nodes; give --nnodes {num_nodes}, or change the script"
        )
    return replace(
        job,
        world_size=world_size,
        nproc_per_node=per_node,
        cluster=job.cluster.with_nodes(num_nodes),
        launcher_environment=LayeredEnvironment((job.launcher_environment, OwnEnvironment(report.rank_variables))),
    )


def _commanded(job: Job, report: CommandStarted) -> Job:
    """Return the job of a launch command that the script starts."""
    typed_in = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    plan = parse_command(report.words, {**typed_in, **report.variables})
    world = plan.world(num_nodes=job.num_nodes, gpus_per_node=job.cluster.gpus_per_node)
    layers = (job.launcher_environment, FixedEnvironment(report.variables), plan.environment)
    return replace(
        job,
        script=plan.script,
        script_args=plan.script_args,
        is_module=plan.is_module,
        world_size=world.num_nodes * world.ranks_per_node,
        nproc_per_node=world.ranks_per_node,
        cluster=job.cluster.with_nodes(world.num_nodes),
        launcher_environment=LayeredEnvironment(layers),
    )


def _run_sessions(job: Job, ranks: RankStarter, listen: Listener, task: Callable[[int], RankTask]) -> FinishedSession:
    """Run a session; again if it may have failed because ranks did not run together.

    A rank may have been answered before all ranks of its kind were known (a sample pickles a longer object than the
    rank that ran before it), a sample may have come too late for a file that another rank has removed, or a rank may
    have found one, such as the checkpoint of the first step, which another one made later than it looked.
    """
    primaries = job.first_ranks
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        session = Session(job, ranks, listen, task=task)
        error: FindingError | None = None
        notes: tuple[Note, ...] = ()
        try:
            classes = session.run(primaries)
        except RanksLaunched as launched:
            launched.parents = session.hand_over()
            raise
        except ScriptLaunched:
            session.kill_ranks(keeps_output=True)
            raise
        except FindingError as failure:
            together = session.primaries | session.late_samples | set(failure.findings[0].ranks)
            is_final = job.ranks != "auto" or attempt == _MAX_ATTEMPTS or together <= primaries
            may_find_files = isinstance(failure, MismatchError) and session.has_made_files
            if not is_final and (session.late_samples or session.broker.stale() or may_find_files):
                session.kill_ranks()
                session.forget_files()
                is_last = attempt + 1 == _MAX_ATTEMPTS and job.world_size <= job.limits.max_primaries
                primaries = set(range(job.world_size)) if is_last else together
                names = ", ".join(map(str, sorted(primaries)))
                listen(Noticed(text=f"starting again with ranks {names} together from the beginning"))
                continue
            classes = session.wind_down(failure)
            error = session.explained(failure)
            if isinstance(error, MismatchError):  # without what only the broker needs
                error = MismatchError(*error.findings)
            if session.is_followed:  # every step that was to be captured was: the figures stand
                notes = tuple(Note(finding.rule, finding.to_json()) for finding in error.findings)
                error = None
        finally:
            session.close()
            remove_node_memory(task(0).records_path)
        records = {
            rank: _with_largest_memory(RankRecords.load(task(rank).records_path), members, session.sharded)
            for rank, members in classes.items()
        }
        paths = {rank: Path(observations_path(task(rank))) for rank in sorted(session.outcomes)}
        observations = {rank: Observations.load(path) for rank, path in paths.items() if path.exists()}
        return FinishedSession(
            job=job,
            session=session,
            classes=classes,
            records=records,
            error=error,
            observations=observations,
            notes=(*notes, *_lateness_notes(session)),
        )
    raise AssertionError("the last attempt returns or raises")


def _lateness_notes(session: Session) -> Iterable[Note]:
    return (Note(finding.rule, finding.to_json()) for finding in session.broker.lateness.findings)


def _with_largest_memory(records: RankRecords, members: Iterable[int], sharded: Iterable[ShardedRanks]) -> RankRecords:
    """Give the representative of sharded ranks the largest memory peaks of those captured: they differ by rounding."""
    captured = {rank: work.records.memory for ranks in sharded for rank, work in ranks.work.items()}
    peaks = [records.memory, *(captured[rank] for rank in captured.keys() & set(members))]
    memory = replace(
        records.memory,
        allocated_bytes=max(peak.allocated_bytes for peak in peaks),
        reserved_bytes=max(peak.reserved_bytes for peak in peaks),
    )
    return replace(records, memory=memory)


def _tasks(job: Job, directory: Path, *, offer_address: str = "") -> Callable[[int], RankTask]:
    directory.mkdir(exist_ok=True)
    port = _free_port()

    def task(rank: int) -> RankTask:
        return RankTask(
            settings=job.rank_settings(rank),
            environment=job.environment(rank, master_port=port),
            leading_args=job.leading_args(rank, master_port=port),
            records_path=str(directory / f"rank{rank}.records"),
            offer_address=offer_address,
        )

    return task


class _PrintedLines:
    """Passes events on and counts the lines of rank 0; `once` leaves them out when rank 0 begins again."""

    def __init__(self, listen: Listener) -> None:
        self._listen = listen
        self._printed: Counter[RankPrinted] = Counter()

    def __call__(self, event: Event) -> None:
        if isinstance(event, RankPrinted) and event.rank == 0:
            self._printed[event] += 1
        self._listen(event)

    def once(self, event: Event) -> None:
        if isinstance(event, RankPrinted) and self._printed[event] > 0:
            self._printed[event] -= 1
        else:
            self._listen(event)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
