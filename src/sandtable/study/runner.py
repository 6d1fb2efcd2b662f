"""Run one configuration after the other, and store each as soon as it has ended."""

from collections import deque
from collections.abc import Sequence

from sandtable.errors import SandtableError, StudyError
from sandtable.events import Listener, ignore
from sandtable.study.data import load_images
from sandtable.study.events import MethodFinished, MethodStarted, StudyFinished, StudyStarted, WorkerFailed, decode
from sandtable.study.method import Method
from sandtable.study.results import StudyRun
from sandtable.study.settings import StudySettings
from sandtable.study.store import Assignment, Store
from sandtable.study.worker_hosts import LabHosts, LoopbackHosts, WorkerHosts

__all__ = ["check_methods", "hosts_for", "run_methods", "select_methods"]

_NUM_TAIL_LINES = 15
"""Lines of a failed run's log that its error message repeats."""


def run_methods(
    assignment: Assignment, *, only: Sequence[str] = (), listen: Listener = ignore, hosts: WorkerHosts | None = None
) -> list[StudyRun]:
    """Run the methods that are not stored yet, and return all runs of the study.

    Stopped by Ctrl-C, SIGTERM or an error, it leaves no process behind, and finished runs stay stored.
    """
    store, settings = Store(assignment), assignment.settings
    missing = [method for method in select_methods(settings, only) if store.find(method) is None]
    listen(StudyStarted(settings=settings, methods=tuple(missing), num_stored=len(store.runs())))
    if missing:
        check_methods(missing, assignment)
        load_images(settings.data, assignment.data)  # downloads once, before sixty workers need the images
        assignment.save()
        with hosts or hosts_for(settings) as opened:
            for method in missing:
                listen(MethodStarted(method=method))
                listen(MethodFinished(run=_run_method(store, method, opened, listen)))
                store.write_results(store.runs())
    runs = store.runs()
    store.write_results(runs)
    listen(StudyFinished(runs=tuple(runs)))
    return runs


def select_methods(settings: StudySettings, only: Sequence[str]) -> list[Method]:
    """Return the methods whose name contains one of the texts in `only`, or all; a full name selects that one alone."""
    if not only:
        return list(settings.methods)
    names = [method.name for method in settings.methods]
    selected: set[str] = set()
    for text in only:
        matches = {text} if text in names else {name for name in names if text.lower() in name.lower()}
        if not matches:
            raise StudyError(f"--only must be (part of) a configuration's name, but got '{text}'; choose from {names}")
        selected |= matches
    return [method for method in settings.methods if method.name in selected]


def check_methods(methods: Sequence[Method], assignment: Assignment) -> None:
    """Refuse methods that cannot work, before the first run."""
    # Imported here because it imports torch, which takes seconds that --list and --help should not.
    from sandtable.study.kinds.registry import check_method, load_methods

    module = load_methods(assignment.methods)
    for method in methods:
        try:
            check_method(method, module, assignment.settings)
        except SandtableError as error:
            raise StudyError(f"{method.name}: {error}") from None


def hosts_for(settings: StudySettings) -> WorkerHosts:
    """Return the hosts that the settings select."""
    return LabHosts(settings) if settings.network.kind == "lab" else LoopbackHosts(workers=settings.workers)


def _run_method(store: Store, method: Method, hosts: WorkerHosts, listen: Listener) -> StudyRun:
    tail: deque[str] = deque(maxlen=_NUM_TAIL_LINES)
    errors: list[str] = []
    log_file = store.log_file(method)
    with log_file.open("w", encoding="utf-8") as log:

        def show(line: str) -> None:
            event = decode(line)
            if event is None:
                log.write(line + "\n")
                tail.append(line)
            elif isinstance(event, WorkerFailed):
                errors.append(event.message)
            else:
                listen(event)

        index = store.assignment.settings.index_of(method.name)
        ended = hosts.run(store.assignment.file, index, show=show)
    if ended.exit_code == 0 and ended.wire_bytes is not None:
        store.add_wire_bytes(method, ended.wire_bytes)
    if ended.exit_code or (run := store.find(method)) is None:
        if errors:
            raise StudyError(f"{method.name}: {errors[0]}")
        rule = f"every worker must succeed, but the run ended with exit code {ended.exit_code}; see {log_file}"
        raise StudyError("\n".join([f"{method.name}: {rule}", *tail]))
    return run
