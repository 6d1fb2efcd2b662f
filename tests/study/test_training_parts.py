"""Batches, model and schedule of one worker."""

import numpy as np
import pytest
import torch

from sandtable.study import Training
from sandtable.study.batches import Batches, shifted
from sandtable.study.data import ImageSet, ImageSplit
from sandtable.study.model import build_model


def numbered_images(count: int) -> ImageSet:
    """Image i is all i, and so is its label, modulo what a byte holds."""
    values = (np.arange(count) % 256).astype(np.uint8)
    pixels = np.broadcast_to(values[:, None, None, None], (count, 3, 8, 8))
    split = ImageSplit(pixels=[np.array(pixels)], labels=values)
    return ImageSet(name="n", num_classes=10, train=split, test=split, mean=(0.0,) * 3, deviation=(1.0,) * 3)


def batches(rank: int, *, workers: int = 3, count: int = 100, batch: int = 10) -> Batches:
    return Batches(images=numbered_images(count), rank=rank, workers=workers, batch=batch, seed=5, augment=False)


def test_workers_together_see_each_image_once_an_epoch() -> None:
    seen = [int(label) for rank in range(3) for _, labels in batches(rank).epoch(0) for label in labels]
    assert len(seen) == len(set(seen)) == 90  # ten do not fill a step of all three


def test_order_changes_with_the_epoch_and_not_with_the_day() -> None:
    first, again, second = (next(batches(0).epoch(number))[1].tolist() for number in (0, 0, 1))
    assert first == again != second


def test_inputs_belong_to_their_targets_and_are_channels_last() -> None:
    inputs, targets = next(batches(1).epoch(0))
    assert inputs.is_contiguous(memory_format=torch.channels_last)
    assert (inputs[:, 0, 0, 0] == targets).all()


def test_steps_without_inputs_have_their_targets() -> None:
    whole, some = list(batches(0).epoch(1)), list(batches(0).epoch(1, with_inputs=lambda step: step != 1))
    assert [len(inputs) for inputs, _ in some] == [10, 0, 10]
    assert [targets.tolist() for _, targets in some] == [targets.tolist() for _, targets in whole]


def test_test_images_are_shared_out() -> None:
    seen = sorted(int(label) for rank in range(3) for _, labels in batches(rank).test_share() for label in labels)
    assert seen == list(range(100))


def test_shifted_images_keep_shape_and_type_and_move() -> None:
    pixels = np.random.default_rng(0).integers(1, 255, (50, 3, 32, 32), dtype=np.uint8)
    moved = shifted(pixels.copy(), np.random.default_rng(1))
    assert (moved.shape, moved.dtype) == (pixels.shape, pixels.dtype)
    assert 0.9 < moved.astype(bool).mean() < 1.0  # only the rim is empty
    assert (moved == pixels).all(axis=(1, 2, 3)).sum() < 10


def test_small_cnn_has_half_a_million_parameters_and_comes_from_its_seed() -> None:
    made = [build_model("small-cnn", shape=(3, 32, 32), num_classes=10, seed=seed) for seed in (1, 1, 2)]
    assert sum(parameter.numel() for parameter in made[0].parameters()) == 545_098
    weights = [next(model.parameters()) for model in made]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert build_model("tiny-cnn", shape=(1, 28, 28), num_classes=7, seed=0)(torch.zeros(2, 1, 28, 28)).shape == (2, 7)


def test_rate_rises_in_a_line_and_falls_to_nothing() -> None:
    rates = [
        Training(learning_rate=0.4, warm_up_epochs=2).rate_at(step, steps_per_epoch=10, epochs=10)
        for step in range(100)
    ]
    assert rates[0] == pytest.approx(0.02)
    assert rates[9] == pytest.approx(0.2)
    assert max(rates) == pytest.approx(0.4)
    assert 0 < rates[-1] < 0.001
    assert rates[20:] == sorted(rates[20:], reverse=True)


def test_constant_rate_stays_after_the_rise_which_a_short_training_shortens() -> None:
    rates = [
        Training(learning_rate=1.0, schedule="constant").rate_at(step, steps_per_epoch=4, epochs=2) for step in range(8)
    ]
    assert rates == [0.5, *[1.0] * 7]
