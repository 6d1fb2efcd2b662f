"""One worker trains alone and with others, by the stand-in for the methods."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from sandtable.errors import StudyError
from sandtable.events import Event, ignore
from sandtable.study import Method, StudySettings
from sandtable.study.events import EpochFinished
from sandtable.study.results import merge_workers
from sandtable.study.store import Assignment, Store
from sandtable.study.training import train
from sandtable.study.worker_hosts import LoopbackHosts

STUB = "tests.study.stub_methods"


def assignment(tmp_path: Path, **changes: Any) -> Assignment:
    settings = StudySettings(
        data="synthetic", model="tiny-cnn", workers=1, batch=100, epochs=2, images_share=0.1, methods=[Method(name="m")]
    ).changed(training={"augment": False, "learning_rate": 0.05}, **changes)
    return Assignment(settings=settings, data=tmp_path / "data", out=tmp_path / "out", methods=STUB)


@pytest.fixture
def _alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_alone")
def test_one_worker_measures_every_epoch_and_tells_its_progress(tmp_path: Path) -> None:
    events: list[Event] = []
    seen = train(assignment(tmp_path), 0, events.append)
    run = merge_workers([seen], name="m", fingerprint="f", settings={})
    assert len(run.epochs) == 2
    assert run.seconds > 0
    assert run.replica_accuracy == run.accuracy  # alone, the mean of all replicas is the replica
    assert run.messages == 8 * 8 + 8  # weights and biases of four layers, in eight steps and once at the end
    last = events[-1]
    assert isinstance(last, EpochFinished)
    assert (last.num_steps, last.total_steps, last.epoch) == (8, 8, 2)


@pytest.mark.usefixtures("_alone")
def test_training_comes_from_its_seed(tmp_path: Path) -> None:
    first, again = (train(assignment(tmp_path), 0, ignore) for _ in range(2))
    other = train(assignment(tmp_path, seed=1), 0, ignore)
    losses = [[epoch.loss for epoch in seen.epochs] for seen in (first, again, other)]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.usefixtures("_alone")
def test_unknown_method_is_one_message(tmp_path: Path) -> None:
    asked = assignment(tmp_path, methods=[{"name": "m", "sync": "Sometimes(3)"}])
    with pytest.raises(
        StudyError, match=r"a method must be one of sandtable.methods, but got Sometimes; choose one of"
    ):
        train(asked, 0, ignore)


@pytest.mark.slow
@pytest.mark.usefixtures("_alone")
def test_two_workers_train_as_one_on_the_joined_batch(tmp_path: Path) -> None:
    alone = train(assignment(tmp_path), 0, ignore)
    together = assignment(tmp_path, workers=2, batch=50)
    together.save()
    lines: list[str] = []
    assert LoopbackHosts(workers=2).run(together.file, 0, show=lines.append).exit_code == 0, lines
    run = Store(together).find(together.settings.methods[0])
    assert run is not None
    for epoch, expected in zip(run.epochs, alone.epochs, strict=True):
        assert epoch.loss == pytest.approx(expected.loss, abs=1e-4)
        assert epoch.accuracy == pytest.approx(expected.accuracy, abs=0.005)


@pytest.mark.slow
def test_number_of_workers_that_is_not_the_settings_is_refused(tmp_path: Path) -> None:
    asked = assignment(tmp_path, workers=3)
    asked.save()
    lines: list[str] = []
    assert LoopbackHosts(workers=1).run(asked.file, 0, show=lines.append).exit_code != 0
    assert any("there must be 3 workers" in line for line in lines)
