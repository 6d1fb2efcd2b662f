"""Sandblaster in a study: L-BFGS on all images, one evaluation per epoch."""

import threading
from pathlib import Path

import pytest
import torch
from tests.study.kinds_in_processes import settings_for, study
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from sandtable.methods.server import LBFGS, LBFGSHistory, LocalSpace, NamedVectors, Progress, minimize
from sandtable.study import Method
from sandtable.study.batches import as_input
from sandtable.study.data import load_images
from sandtable.study.kinds.epoch_gate import EpochGate
from sandtable.study.model import build_model

EPOCHS = 6


def alone(data: Path) -> list[tuple[int, float, float]]:
    """L-BFGS in one process: evaluations, loss and accuracy after each iteration."""
    images = load_images("synthetic", data)
    model = build_model("tiny-cnn", shape=images.shape, num_classes=10, seed=0)
    inputs = as_input(images.train.pixels[0][:600].copy(), images)
    targets = torch.from_numpy(images.train.labels[:600].copy()).long()
    vectors = NamedVectors([parameters_to_vector(model.parameters()).detach().clone()])

    def evaluate() -> float:
        vector_to_parameters(vectors["weights"][0].clone(), model.parameters())
        model.zero_grad()
        squares: Tensor = torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum()
        loss = nn.functional.cross_entropy(model(inputs), targets) + 5e-4 / 2 * squares
        loss.backward()
        gradient = parameters_to_vector([p.grad for p in model.parameters() if p.grad is not None])
        vectors.load_state_dict({**vectors.state_dict(), "gradient": [gradient]})
        return loss.item()

    seen: list[tuple[int, float, float]] = []

    def note(progress: Progress) -> None:
        found = model(as_input(images.test.pixels[0].copy(), images)).argmax(1).numpy()
        seen.append((progress.num_evaluations, progress.loss, float((found == images.test.labels).mean())))

    settings = LBFGS(max_iterations=EPOCHS, max_evaluations=EPOCHS)
    minimize(LocalSpace([vectors]), evaluate, settings, after=note)
    return seen


def test_it_takes_the_way_of_one_process_and_an_epoch_is_an_evaluation(tmp_path: Path) -> None:
    expected = alone(tmp_path)
    run = study(tmp_path, settings_for(2, Method(name="blast", kind="Sandblaster(portion=47)"), epochs=EPOCHS))
    for number, epoch in enumerate(run.epochs, start=1):
        _, loss, accuracy = [each for each in expected if each[0] <= number][-1]
        assert epoch.loss == pytest.approx(loss, rel=1e-3)
        assert epoch.accuracy == pytest.approx(accuracy, abs=0.01)
        assert epoch.disagreement == 0
    assert run.epochs[-1].loss < 0.95 * run.epochs[0].loss
    # Every portion's gradient goes up, every replica's weights come down, and little else moves.
    weights = sum(p.nbytes for p in build_model("tiny-cnn", shape=(3, 32, 32), num_classes=10, seed=0).parameters())
    assert EPOCHS * 13 * weights < 2 * run.sent_bytes < 1.2 * (EPOCHS + 1) * (13 + 2 + 2) * weights
    assert run.settings["training"]["learning_rate"] is None
    assert run.learning_rate is None
    assert 0 < run.communication_s < run.seconds


def progress(evaluations: int, loss: float) -> Progress:
    return Progress(loss=loss, gradient_norm=1.0, history=LBFGSHistory(1), num_evaluations=evaluations)


def test_an_iterate_counts_from_the_epoch_in_which_its_search_ended() -> None:
    """The second search takes three evaluations; after the third iterate there are no more."""
    gate, stood = EpochGate(), []

    def coordinate() -> None:
        for evaluations, loss in ((1, 8.0), (2, 7.0), (5, 4.0)):
            stood.append(evaluations)
            gate.wait(progress(evaluations, loss))
        gate.close()

    thread = threading.Thread(target=coordinate)
    thread.start()
    assert gate.advance(1) == (True, 8.0)
    assert stood == [1]  # it stands still until it is told to go on
    told = [gate.advance(number) for number in range(2, 8)]
    assert told == [(True, 7.0), (False, 7.0), (False, 7.0), (True, 4.0), (False, 4.0), (False, 4.0)]
    thread.join(10)
    assert not thread.is_alive()


def test_a_coordinator_that_nobody_waits_for_any_more_is_let_go() -> None:
    gate = EpochGate()
    thread = threading.Thread(target=gate.wait, args=[progress(1, 1.0)])
    thread.start()
    gate.advance(1)
    gate.release()
    thread.join(10)
    assert not thread.is_alive()
