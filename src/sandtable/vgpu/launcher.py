"""The launcher: `launch(job)` runs a script on virtual GPUs and returns its trace.

It stands where torchrun would, but starts only as many ranks as it takes to know what all of them do. It never imports
torch: ranks are forked from the zygote, which has. Whatever happens, no process outlives it.
"""

import os
import resource
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandtable.errors import SandtableError
from sandtable.trace import Group, Note, RankRecords, Run, Trace
from sandtable.vgpu.nursery import Nursery
from sandtable.vgpu.output import View
from sandtable.vgpu.rank import Task
from sandtable.vgpu.session import Session
from sandtable.vgpu.settings import Job

__all__ = ["launch"]

_MAX_ATTEMPTS = 3


def launch(job: Job, *, view: View | None = None) -> Trace:
    """Captures the job; what ranks print and how far it is goes to `view`.

    Raises ScriptError if the script fails on a rank, MismatchError if ranks do not agree, LaunchError if nothing can be
    started. KeyboardInterrupt is passed on. In every case all processes have ended.
    """
    clock, own_seconds = time.monotonic(), _own_seconds()
    view = view or View()
    try:
        with tempfile.TemporaryDirectory(prefix="sandtable-") as directory:
            task = _tasks(job, Path(directory))
            with Nursery(job.runtime, job.core_path) as nursery:
                nursery.wait_until_ready()
                _allow_descriptors(job)
                capture = _capture(job, nursery, view, task)
                records = {rank: RankRecords.load(task(rank).records_path) for rank in capture.classes}
    finally:
        view.close()
    session = capture.session
    run = Run(
        world_size=job.world_size,
        cluster=job.cluster.name,
        gpus_per_node=job.cluster.gpus_per_node,
        ranks_per_node=job.nproc_per_node,
        command=job.command or (job.script, *job.script_args),
        captured_ranks=tuple(sorted(session.outcomes)),
        wall_seconds=time.monotonic() - clock,
        core_seconds=nursery.core_seconds + _own_seconds() - own_seconds,
        peak_rss_bytes=session.meter.peak_bytes,
        notes=tuple(_notes(job, session)),
    )
    trace = Trace.assemble(records, classes=capture.classes, groups=_groups(session), run=run)
    if job.out is not None:
        job.out.mkdir(parents=True, exist_ok=True)
        trace.save(job.out)
    return trace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Capture:
    session: Session
    classes: Mapping[int, tuple[int, ...]]


def _capture(job: Job, nursery: Nursery, view: View, task: Callable[[int], Task]) -> _Capture:
    """Runs a session; once more if it failed for what a rank was told before all others of its kind were known."""
    primaries = _first_ranks(job)
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        session = Session(job, nursery, view, task=task)
        try:
            return _Capture(session=session, classes=session.run(primaries))
        except SandtableError:
            is_for_sure = attempt == _MAX_ATTEMPTS or session.primaries <= primaries
            if job.ranks != "auto" or is_for_sure or not session.broker.stale():
                raise
            session.abandon()
            primaries = session.primaries
            view.note(f"starting again with ranks {', '.join(map(str, sorted(primaries)))} together from the beginning")
        finally:
            session.release()
    raise AssertionError("the last attempt returns or raises")


def _first_ranks(job: Job) -> set[int]:
    if job.ranks == "auto":
        return {0}
    return set(range(job.world_size)) if job.ranks == "all" else set(job.ranks)


def _tasks(job: Job, directory: Path) -> Callable[[int], Task]:
    port, here = _free_port(), os.getcwd()

    def task(rank: int) -> Task:
        return Task(
            settings=job.rank_settings(rank),
            script=job.script,
            is_module=job.is_module,
            script_args=job.script_args,
            environment=job.environment(rank, master_port=port),
            directory=here,
            records_path=str(directory / f"rank{rank}.records"),
        )

    return task


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _groups(session: Session) -> Iterable[Group]:
    book = session.book
    return (Group(book.names[entry], tuple(book.members[entry].tolist())) for entry in book.in_order())


def _notes(job: Job, session: Session) -> Iterable[Note]:
    """What the user should know about where the capture stopped, and how sure its classes are."""
    for first, size in session.unsure:
        yield Note(
            "unsure classes",
            f"the {size} ranks from rank {first} on do not all do the same work, and {job.limits.max_samples} of them "
            "did not show which do; the classes among them are a guess: --ranks all runs every rank",
        )
    reasons = {
        (outcome.stop_reason, outcome.num_steps): rank
        for rank, outcome in sorted(session.outcomes.items(), reverse=True)
        if outcome.num_steps < job.num_steps
    }
    for (reason, num_steps), rank in sorted(reasons.items(), key=lambda item: item[1]):
        yield Note(
            "fewer steps", f"rank {rank} made {num_steps} of {job.num_steps} optimizer steps; it stopped for: {reason}"
        )


def _allow_descriptors(job: Job) -> None:
    """Every running rank takes a channel and two pipes; the usual soft limit of 1024 is too low for many of them."""
    wanted = 256 + 6 * (job.world_size if job.ranks == "all" else 64)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _own_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
