"""Each kind trains the model, and counts what it sends."""

from pathlib import Path

import pytest
from tests.study.kinds_in_processes import settings_for, study

from sandtable.errors import StudyError
from sandtable.study import Method
from sandtable.study.data import load_images
from sandtable.study.kinds.downpour import DownpourKind
from sandtable.study.kinds.one_machine import OneMachineKind
from sandtable.study.kinds.trainer import TrainerSetup
from sandtable.study.model import build_model

LONGER = {
    "images_share": 0.3,
    "epochs": 4,
    "training": {"augment": False, "momentum": 0.0, "warm_up_epochs": 0},
}
"""Enough to learn something."""

CONVOLUTION_BYTES = 4 * (3 * 9 * 4 + 4 + 4 * 9 * 8 + 8)
DENSE_BYTES = 4 * (512 * 16 + 16 + 16 * 10 + 10)
CUT_BYTES = 4 * 512
"""Per image, between convolutions and dense layers."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate the data once, not in every worker."""
    folder = tmp_path_factory.mktemp("data")
    load_images("synthetic", folder)
    return folder


def setup_of_three(data: Path) -> TrainerSetup:
    """Return the setup of the first of three workers, in this process."""
    images, settings = load_images("synthetic", data), settings_for(3, Method(name="m"))
    model = build_model("tiny-cnn", shape=images.shape, num_classes=10, seed=0)
    return TrainerSetup(settings=settings, training=settings.training, images=images, model=model, rank=0, workers=3)


def test_one_machine_on_the_joined_batch_is_bulk_synchronous_training(data: Path) -> None:
    together = study(data, settings_for(2, Method(name="all")))
    alone = study(data, settings_for(2, Method(name="one", kind="OneMachine(batch=40)")))
    for epoch, expected in zip(alone.epochs, together.epochs, strict=True):
        assert epoch.loss == pytest.approx(expected.loss, abs=1e-4)
        assert epoch.accuracy == pytest.approx(expected.accuracy, abs=0.005)
    assert alone.sent_bytes == alone.communication_s == alone.epochs[-1].disagreement == 0
    assert together.sent_bytes > 0


def test_one_machine_takes_a_workers_batch_and_all_images(data: Path) -> None:
    setup = setup_of_three(data)
    assert OneMachineKind().trainer(setup).steps_per_epoch == 600 // 20
    assert setup.own_batches.steps_per_epoch == 600 // 60


@pytest.mark.parametrize(
    ("kind", "rate", "period"),
    [
        ("Downpour(n_push=2, n_fetch=2)", 0.05, 2),
        ("Downpour(optimizer='Adagrad', shards=1, local_rate=0.05, warm_start_steps=5)", 0.02, 1),
    ],
)
def test_downpour_learns_on_servers_beside_its_replicas(data: Path, kind: str, rate: float, period: int) -> None:
    run = study(data, settings_for(2, Method(name="rain", kind=kind, learning_rate=rate), **LONGER))
    assert run.accuracy > 0.4
    # At the end of an epoch all replicas have the servers' weights.
    assert max(epoch.disagreement for epoch in run.epochs) == 0
    # Gradients up and weights down: never more often than said, but fewer and larger ones when a server is slow; and
    # the end of an epoch is a push of what is left and one more fetch.
    most = 2 * (CONVOLUTION_BYTES + DENSE_BYTES) * (30 // period + 1)
    for epoch in run.epochs:
        assert most / 10 < epoch.sent_bytes < 1.1 * most
    assert run.communication_s > 0
    assert run.exposed_s < run.seconds


def test_warm_start_that_an_epoch_cannot_hold_is_refused(data: Path) -> None:
    """The others would wait for its end, and the first for them at the end of the epoch."""
    with pytest.raises(StudyError, match=r"no more than the steps of an epoch \(10\), .* but got 11; take fewer"):
        DownpourKind(warm_start_steps=11).trainer(setup_of_three(data))


def test_pipedream_learns_and_sends_what_crosses_the_cut_and_what_replicas_share(data: Path) -> None:
    kind = "PipeDream(boundaries=[6], replicas=[2, 1])"
    run = study(data, settings_for(3, Method(name="pipe", kind=kind, momentum=0.9, learning_rate=0.01), **LONGER))
    assert run.accuracy > 0.45
    assert run.epochs[-1].disagreement < 1e-12
    # 1200 images cross forward and backward; two replicas make 30 rounds, and each sends half of its weights twice.
    expected = 2 * 1200 * CUT_BYTES + 30 * 2 * CONVOLUTION_BYTES
    for epoch in run.epochs:
        assert expected <= 3 * epoch.sent_bytes < 1.02 * expected
    assert run.settings["stages"] == {"replicas": [2, 1], "boundaries": [6]}
    assert 0 <= run.communication_s <= run.synchronisation_s < run.seconds
