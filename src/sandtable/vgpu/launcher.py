"""The launcher: runs scripts on virtual GPUs and returns their traces.

    with Launcher() as launcher:
        trace = launcher.launch(job)

It takes the place of torchrun, but starts only as many ranks as it takes to know what all of them do. It never imports
torch: ranks are forked from the fork server, which has. The first launch starts the fork server and later ones use it
again, so they cost little more than the script's own work. Whatever happens, no process outlives the launcher.
"""

import resource
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from sandtable.errors import LaunchError, SandtableError
from sandtable.events import Listener, Preparing, Started, ignore
from sandtable.findings import place_text
from sandtable.launch import is_notebook, read_notebook
from sandtable.trace import Note, RunFacts, Trace
from sandtable.vgpu.build import core_path as built_core_path
from sandtable.vgpu.fork_client import ForkClient
from sandtable.vgpu.job_run import FinishedSession, run_job
from sandtable.vgpu.preload import UnloadableCoreError
from sandtable.vgpu.self_testing import require_known_or_tried
from sandtable.vgpu.session import Session
from sandtable.vgpu.settings import Job

__all__ = ["CaptureResult", "Launcher", "launch", "open_launcher", "use_launcher"]

_MAX_ATTEMPTS = 3

_shared: ContextVar["Launcher | None"] = ContextVar("sandtable_launcher", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureResult:
    """The result of a capture: its trace, and the error if it failed.

    The trace of a failed capture holds what the ranks recorded until then; it has no classes if none could save
    anything.
    """

    trace: Trace
    error: SandtableError | None = None


class Launcher:
    """Runs jobs one after another; use it as a context. Threads may share it: their launches wait for each other.

    `runtime` is the fork server's entry module, and `core_path` the virtual GPU's library; by default it is built on
    first use.
    """

    def __init__(self, *, runtime: str = "sandtable.vgpu.runtime", core_path: str | None = None) -> None:
        self._runtime = runtime
        self._core_path = core_path
        self._client: ForkClient | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the fork server and everything it forked."""
        with self._lock:
            self._is_closed = True
            self._stop()

    def launch(self, job: Job, *, listen: Listener = ignore) -> Trace:
        """Capture the job and return its trace; raise the error if it failed.

        Raises ScriptError if the script fails on a rank, MismatchError if ranks do not agree, LaunchError or BuildError
        if nothing can be started. KeyboardInterrupt is passed on. In every case all ranks have ended.
        """
        result = self.capture(job, listen=listen)
        if result.error is not None:
            raise result.error
        return result.trace

    def capture(self, job: Job, *, listen: Listener = ignore) -> CaptureResult:
        """Capture the job; a failure of the script is part of the result.

        `listen` takes the events of the capture, in this thread. Raises LaunchError or BuildError if the job cannot be
        run, and passes on KeyboardInterrupt. In every case all ranks have ended.
        """
        with self._lock:
            clock, own_seconds = time.monotonic(), _own_seconds()
            listen(Started(command=_command(job), world_size=job.world_size))
            client = self._ready_client(listen)
            try:
                with tempfile.TemporaryDirectory(prefix="sandtable-") as directory:
                    finished = self._run(job, client, listen, Path(directory))
                core_seconds = client.end_launch() + _own_seconds() - own_seconds
            except BaseException:
                self._stop()
                raise
            trace = _assemble(finished, wall_seconds=time.monotonic() - clock, core_seconds=core_seconds)
            return CaptureResult(trace=trace, error=finished.error)

    def _run(self, job: Job, client: ForkClient, listen: Listener, directory: Path) -> FinishedSession:
        _allow_descriptors(job)
        try:
            return run_job(job, client, listen, directory)
        except BaseException:
            self._stop()  # before the directory that its ranks write to is removed
            raise

    def _ready_client(self, listen: Listener) -> ForkClient:
        """Return the running fork server, or start one."""
        if self._is_closed:
            raise LaunchError("a launcher must be open to launch, but this one is closed; make a new Launcher")
        if self._client is not None and not self._client.is_usable:
            self._stop()
        if self._client is None:
            try:
                self._start(listen)
            except BaseException:
                self._stop()
                raise
        assert self._client is not None, "the fork server has started"
        return self._client

    def _start(self, listen: Listener) -> None:
        """Start a fork server; if the cached core does not load, start it again with a new core."""
        # Where nobody listens, the build itself writes to standard error.
        show = None if listen is ignore else lambda text: listen(Preparing(text=text.strip()))
        path = str(built_core_path(show)) if self._core_path is None else self._core_path
        if self._core_path is None:
            require_known_or_tried()
        listen(Preparing(text="loading torch and the virtual GPU"))
        self._client = ForkClient(self._runtime, path)
        try:
            self._client.wait_until_ready()
        except UnloadableCoreError:
            if self._core_path is not None:
                raise
            self._stop()
            self._client = ForkClient(self._runtime, str(built_core_path(show, is_unloadable=True)))
            self._client.wait_until_ready()

    def _stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def launch(job: Job, *, listen: Listener = ignore) -> Trace:
    """Capture one job with a new launcher, or with that of `use_launcher`. See `Launcher.launch`."""
    with open_launcher() as launcher:
        return launcher.launch(job, listen=listen)


@contextmanager
def open_launcher() -> Iterator[Launcher]:
    """Yield the launcher of `use_launcher`, or a new one that ends with the block."""
    launcher = _shared.get()
    if launcher is not None:
        yield launcher
        return
    with Launcher() as launcher:
        yield launcher


@contextmanager
def use_launcher(launcher: Launcher) -> Iterator[Launcher]:
    """Make `launch` and `open_launcher` use this launcher inside the block, in this thread."""
    token = _shared.set(launcher)
    try:
        yield launcher
    finally:
        _shared.reset(token)


def _assemble(finished: FinishedSession, *, wall_seconds: float, core_seconds: float) -> Trace:
    job, session = finished.job, finished.session
    run = RunFacts(
        world_size=job.world_size,
        cluster=job.cluster.name,
        gpus_per_node=job.cluster.gpus_per_node,
        ranks_per_node=job.nproc_per_node,
        command=_command(job),
        num_skipped_steps=job.num_skipped_steps,
        captured_ranks=tuple(sorted(session.outcomes)),
        wall_seconds=wall_seconds,
        core_seconds=core_seconds,
        peak_rss_bytes=session.meter.peak_bytes,
        notes=(*_notes(job, session), *finished.notes),
    )
    return Trace.assemble(
        finished.records,
        classes=finished.classes,
        groups=session.registry.table(),
        run=run,
        observations=finished.observations,
    )


def _command(job: Job) -> tuple[str, ...]:
    return job.command or (job.script, *job.script_args)


def _notes(job: Job, session: Session) -> Iterable[Note]:
    """Yield what the user should know about where the capture stopped, and how sure its classes are."""
    if not job.is_module and is_notebook(job.script):
        for skipped in read_notebook(job.script).skipped:
            place = place_text(skipped.file, skipped.line)
            yield Note("skipped line", f"only IPython runs '{skipped.text}' ({place})")
    for first, size in session.unsure:
        yield Note(
            "unsure classes",
            f"the {size} ranks from rank {first} on do not all do the same work, and {job.limits.max_samples} of them "
            "did not show which do; the classes among them are a guess: --ranks all runs every rank",
        )
    if session.sharded:
        pieces = np.concatenate([ranks.pieces.column("pieces") for ranks in session.sharded])
        yield Note(
            "sharded ranks",
            f"{len(pieces)} ranks hold shards of flat buffers, cut at different places into {pieces.min()} to "
            f"{pieces.max()} pieces of parameters; their work follows from these by arithmetic, which "
            f"{sum(len(ranks.work) for ranks in session.sharded)} captured ranks confirm; the rank whose pieces cost "
            "most represents its class",
        )
    reasons = {
        (outcome.stop_reason, outcome.num_steps): rank
        for rank, outcome in sorted(session.outcomes.items(), reverse=True)
        if outcome.num_steps < job.num_steps
    }
    for (reason, num_steps), rank in sorted(reasons.items(), key=lambda item: item[1]):
        yield Note("fewer steps", f"rank {rank} made {num_steps} of {job.num_steps} steps; it stopped for: {reason}")


def _allow_descriptors(job: Job) -> None:
    """Raise the limit of open files: a rank takes a channel and two pipes, and the usual 1024 is too low for many."""
    wanted = 256 + 6 * (job.world_size if job.ranks == "all" else 64)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _own_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
