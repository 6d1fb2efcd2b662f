"""Runs are stored, stopped studies continue, failures are reported; and two real workers train."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sandtable.errors import StudyError
from sandtable.events import Event
from sandtable.study import Method, StudySettings
from sandtable.study.comparison import compare
from sandtable.study.events import EpochFinished, MethodAdvanced, MethodStarted, WorkerFailed, decode, encode
from sandtable.study.results import Epoch, StudyRun, WorkerRecord, merge_workers
from sandtable.study.runner import run_methods, select_methods
from sandtable.study.store import Assignment, Store, write_json
from sandtable.study.table import markdown
from sandtable.study.worker_hosts import ShowLine, WorkerHosts, WorkersExit

STUB = "tests.study.stub_methods"


class Recorder:
    """A listener that keeps the events it needs."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.advanced: list[MethodAdvanced] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, MethodStarted):
            self.started.append(event.method.name)
        elif isinstance(event, MethodAdvanced):
            self.advanced.append(event)


def a_run(settings: StudySettings, method: Method) -> StudyRun:
    epoch = Epoch(
        seconds=2.0,
        communication_s=0.5,
        synchronisation_s=0.75,
        exposed_s=0.75,
        sent_bytes=100,
        received_bytes=100,
        messages=4,
        loss=1.0,
        accuracy=0.5,
        disagreement=0.0,
    )
    about = settings.model_dump(mode="json", exclude={"methods"})
    return StudyRun(
        name=method.name,
        fingerprint=settings.fingerprint(method),
        settings=about,
        epochs=(epoch, epoch),
        replica_accuracy=0.4,
        memory_bytes=1.0,
    )


class FakeHosts(WorkerHosts):
    """Writes a result as a worker would; stops with `error` at the `stop_at`-th run."""

    def __init__(self, *, stop_at: int = 99, error: BaseException | None = None, exit_code: int = 0) -> None:
        self.count, self.stop_at, self.error, self.exit_code = 0, stop_at, error, exit_code

    def run(self, study: Path, index: int, *, show: ShowLine) -> WorkersExit:
        self.count += 1
        assignment = Assignment.load(study)
        method = assignment.settings.methods[index]
        if self.count == self.stop_at:
            show("something went wrong")
            if self.error is not None:
                raise self.error
            return WorkersExit(exit_code=self.exit_code)
        show(encode(MethodAdvanced(method=method.name, num_steps=1, total_steps=2)))
        write_json(assignment.result_file(method), a_run(assignment.settings, method).to_dict())
        return WorkersExit(exit_code=0, wire_bytes=123.0)


def quick(tmp_path: Path, **changes: Any) -> Assignment:
    settings = StudySettings(
        data="synthetic",
        model="tiny-cnn",
        workers=2,
        batch=50,
        epochs=2,
        images_share=0.25,
        methods=[Method(name="first"), Method(name="second", sync="LocalSGD(period=4)")],
    ).changed(**changes)
    return Assignment(settings=settings, data=tmp_path / "data", out=tmp_path / "out", methods=STUB)


def test_all_runs_are_made_stored_and_written_as_results(tmp_path: Path) -> None:
    assignment, recorder = quick(tmp_path), Recorder()
    runs = run_methods(assignment, listen=recorder, hosts=FakeHosts())
    assert [run.name for run in runs] == recorder.started == ["first", "second"]
    assert runs[0].wire_bytes == 123.0
    results = json.loads((assignment.out / "results.json").read_text())
    assert results["version"] == 1
    assert results["runs"][1]["totals"]["seconds"] == 4.0
    assert recorder.advanced[0] == MethodAdvanced(method="first", num_steps=1, total_steps=2)


def test_stopped_study_continues_where_it_stopped(tmp_path: Path) -> None:
    assignment = quick(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_methods(assignment, listen=Recorder(), hosts=FakeHosts(stop_at=2, error=KeyboardInterrupt()))
    assert [run.name for run in Store(assignment).runs()] == ["first"]
    recorder = Recorder()
    assert len(run_methods(assignment, listen=recorder, hosts=FakeHosts())) == 2
    assert recorder.started == ["second"]


def test_other_settings_run_again_and_leave_the_old_runs_alone(tmp_path: Path) -> None:
    run_methods(quick(tmp_path), listen=Recorder(), hosts=FakeHosts())
    recorder = Recorder()
    run_methods(quick(tmp_path, epochs=3), listen=recorder, hosts=FakeHosts())
    assert len(recorder.started) == 2
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 4
    assert len(Store(quick(tmp_path)).runs()) == 2


def test_only_takes_parts_of_names_and_refuses_unknown_ones() -> None:
    settings = StudySettings()
    assert len(select_methods(settings, ["Threshold"])) == 3
    assert [method.name for method in select_methods(settings, ["LocalSGD(1), gossip"])] == ["LocalSGD(1), gossip"]
    with pytest.raises(StudyError, match="but got 'ring'; choose from"):
        select_methods(settings, ["ring"])


def test_failed_run_shows_its_last_lines_and_its_log(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"exit code 7; see .*second.log\nsomething went wrong"):
        run_methods(quick(tmp_path), listen=Recorder(), hosts=FakeHosts(stop_at=2, exit_code=7))


def test_method_that_cannot_work_is_refused_before_the_first_run(tmp_path: Path) -> None:
    wrong = Method(name="third", sync="LocalSGD(period=4, outer=Nesterov())", exchange="Gossip()")
    settings = quick(tmp_path).settings
    assignment = Assignment(
        settings=settings.model_copy(update={"methods": [*settings.methods, wrong]}), data=tmp_path, out=tmp_path
    )
    hosts = FakeHosts()
    with pytest.raises(StudyError, match="third: an outer optimizer over gossip must also pull"):
        run_methods(assignment, listen=Recorder(), hosts=hosts)
    assert hosts.count == 0
    run_methods(assignment, only=["first"], listen=Recorder(), hosts=hosts)
    assert hosts.count == 1


KINDS = [
    Method(name="one", kind="OneMachine()"),
    Method(name="rain", kind="Downpour(n_push=2, n_fetch=2)"),
    Method(name="blast", kind="Sandblaster()"),
    Method(name="pipe", kind="PipeDream(boundaries=[6])"),
]


def with_methods(assignment: Assignment, methods: list[Method]) -> Assignment:
    settings = assignment.settings.model_copy(update={"methods": methods})
    return Assignment(settings=settings, data=assignment.data, out=assignment.out)


def test_stopped_study_of_kinds_continues_where_it_stopped(tmp_path: Path) -> None:
    assignment = with_methods(quick(tmp_path), KINDS)
    with pytest.raises(KeyboardInterrupt):
        run_methods(assignment, listen=Recorder(), hosts=FakeHosts(stop_at=3, error=KeyboardInterrupt()))
    recorder = Recorder()
    assert [run.name for run in run_methods(assignment, listen=recorder, hosts=FakeHosts())] == [
        "one",
        "rain",
        "blast",
        "pipe",
    ]
    assert recorder.started == ["blast", "pipe"]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Method(name="m", kind="Rainfall()"), "a kind must be one that sandtable study knows, but got Rainfall"),
        (Method(name="m", kind="OneMachine(batch=0)"), "batch must be 1 image or more, but got 0; leave it out"),
        (Method(name="m", kind="Downpour(optimizer='Adam')"), "must be one of .*, but got 'Adam'; see the paper"),
        (Method(name="m", kind="Downpour(shards=3)"), "must not exceed the number of ranks .*, but got 3; use fewer"),
        (Method(name="m", kind="Downpour(n_push=0)"), "must be 1 or more steps, but got .1, 0.; 1 is every step"),
        (Method(name="m", kind="Downpour(n_push='often')"), "must have arguments of the right types"),
        (Method(name="m", kind="Sandblaster(portion=0)"), "portion_size must be 1 or more, but got"),
        (Method(name="m", kind="Sandblaster(history=0)"), "history .* must be 1 or more, but got"),
        (
            Method(name="m", kind="Sandblaster()", learning_rate=0.1),
            "learning_rate must be left out where there is no learning rate .*, but got 0.1; remove it",
        ),
        (Method(name="m", kind="PipeDream()"), "PipeDream must be given its own arguments"),
        (Method(name="m", kind="PipeDream(boundaries=6)"), "boundaries must be a list .*, but got 6; try"),
        (Method(name="m", kind="PipeDream(boundaries=[99])"), "after the first, but got 99 of 10 layers; try 1 to 9"),
        (
            Method(name="m", kind="PipeDream(boundaries=[6], replicas=[7, 1])"),
            "must add up to the ranks of the group .2., but .7, 1. add up to 8; start that many ranks",
        ),
    ],
)
def test_kind_that_cannot_work_is_refused_before_the_first_run(tmp_path: Path, method: Method, words: str) -> None:
    hosts = FakeHosts()
    with pytest.raises(StudyError, match=f"m: .*{words}"):
        run_methods(with_methods(quick(tmp_path), [method]), listen=Recorder(), hosts=hosts)
    assert hosts.count == 0


def test_damaged_run_is_refused_with_its_file(tmp_path: Path) -> None:
    assignment = quick(tmp_path)
    file = assignment.result_file(assignment.settings.methods[0])
    write_json(file, {"version": 9})
    with pytest.raises(StudyError, match="must be a run of version 1, but got 9"):
        Store(assignment).runs()


def test_merging_workers_takes_the_slowest_clock_and_the_mean_of_the_rest() -> None:
    records = [
        WorkerRecord(
            epochs=(
                Epoch(
                    seconds=value,
                    communication_s=value,
                    synchronisation_s=value,
                    exposed_s=value,
                    sent_bytes=value,
                    received_bytes=value,
                    messages=value,
                    loss=value,
                    accuracy=value,
                    disagreement=0.0,
                ),
            ),
            replica_correct=value,
            tested=10,
            memory_bytes=value,
        )
        for value in (2.0, 4.0)
    ]
    run = merge_workers(records, name="x", fingerprint="y", settings={})
    assert (run.seconds, run.communication_s, run.replica_accuracy, run.compute_s) == (4.0, 3.0, 0.3, 1.0)
    assert StudyRun.from_dict(json.loads(json.dumps(run.to_dict())), source="here") == run


def test_events_of_workers_survive_their_way_as_lines_and_other_lines_are_none() -> None:
    advanced = MethodAdvanced(method="m", num_steps=1, total_steps=2)
    epoch = EpochFinished(method="m", num_steps=2, total_steps=2, epoch=1, loss=0.5, accuracy=0.9, is_last=True)
    for event in (advanced, epoch, WorkerFailed(message="no")):
        assert decode(f"[rank0] {encode(event)}") == event
    assert decode("Warning: something") is None
    assert decode(encode(advanced)[:-5]) is None
    assert decode('@study {"event": "MethodAdvanced"}') is None


@pytest.mark.slow
def test_two_workers_on_loopback_learn_and_bulk_synchronous_equals_local_sgd_of_one(tmp_path: Path) -> None:
    assignment = quick(tmp_path, images_share=1.0, model="small-cnn", training={"learning_rate": 0.05})
    methods = [Method(name="bulk"), Method(name="local", sync="LocalSGD(period=1)")]
    assignment = Assignment(
        settings=assignment.settings.model_copy(update={"methods": methods}),
        data=assignment.data,
        out=assignment.out,
        methods=STUB,
    )
    recorder = Recorder()
    bulk, local = run_methods(assignment, listen=recorder)
    assert bulk.accuracy > 0.5
    assert local.accuracy == pytest.approx(bulk.accuracy, abs=0.01)
    assert bulk.epochs[-1].disagreement < 1e-10
    assert bulk.sent_bytes > local.sent_bytes * 0.9
    assert 0 < bulk.communication_s < bulk.seconds
    assert bulk.memory_bytes > 1e6
    last = recorder.advanced[-1]
    assert isinstance(last, EpochFinished)
    assert last.is_last


@pytest.mark.slow
def test_kinds_run_under_torchrun_and_end_in_one_table(tmp_path: Path) -> None:
    assignment = with_methods(quick(tmp_path, images_share=0.1, training={"learning_rate": 0.02}), KINDS)
    recorder = Recorder()
    runs = run_methods(assignment, listen=recorder)
    assert [run.name for run in runs] == recorder.started == ["one", "rain", "blast", "pipe"]
    assert [run.sent_bytes > 0 for run in runs] == [False, True, True, True]
    assert all(run.seconds > 0 and len(run.epochs) == 2 for run in runs)
    assert markdown(compare(runs), assignment.settings).count("| ") > 4 * 10


@pytest.mark.slow
def test_stopped_by_a_signal_no_worker_is_left(tmp_path: Path) -> None:
    assignment = quick(tmp_path, epochs=500)
    assignment.save()
    program = (
        "from pathlib import Path; "
        "from sandtable.study.store import Assignment; from sandtable.study.runner import run_methods; "
        f"run_methods(Assignment.load(Path({str(assignment.file)!r})))"
    )
    study = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    while len(workers_of(assignment.file)) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert len(workers_of(assignment.file)) >= 2
    os.kill(study.pid, signal.SIGINT)
    study.wait(60)
    deadline = time.monotonic() + 10  # the kernel may need a moment
    while workers_of(assignment.file) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert workers_of(assignment.file) == []


def workers_of(file: Path) -> list[str]:
    """Return the command lines of that study's workers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if str(file) in words and "sandtable.study.worker" in words:
            found.append(" ".join(words))
    return found
