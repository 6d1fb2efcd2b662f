"""Sign, QSGD and half precision: what is particular to each."""

from typing import Any

import pytest
import torch
from tests.methods.test_compression import decoded, vector_of

from sandtable.errors import MethodError
from sandtable.methods.data import QSGD, Half, Sign


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("norm", ["max", "euclidean"])
def test_qsgd_is_unbiased(bits, norm) -> None:
    vector = vector_of(512)
    codec = QSGD(bits, bucket=128, norm=norm, error_feedback=False).codec(512, torch.float32)
    trials = 2000
    total = torch.zeros(512, dtype=torch.float64)
    for _ in range(trials):
        codec.add(codec.encode(vector), total)
    order = float("inf") if norm == "max" else 2
    unit = (torch.linalg.vector_norm(vector.view(4, 128), order, dim=1) / (2 ** (bits - 1) - 1)).repeat_interleave(128)
    chance = (vector.abs() / unit) % 1
    deviation = unit * ((chance * (1 - chance)).sqrt() + 0.02) / trials**0.5  # of a mean of rounded numbers
    error = (total / trials - vector) / deviation
    assert error.abs().max() < 5
    assert error.mean().abs() < 5 / 512**0.5


@pytest.mark.parametrize("bits", range(2, 9))
def test_qsgd_sends_the_levels_of_its_buckets(bits) -> None:
    vector = vector_of(1024)
    codec = QSGD(bits, bucket=256, error_feedback=False).codec(1024, torch.float32)
    result = decoded(codec, codec.encode(vector)).view(4, 256)
    num_intervals = 2 ** (bits - 1) - 1
    steps = result / vector.view(4, 256).abs().amax(1, keepdim=True) * num_intervals
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-4)
    assert steps.abs().max() <= num_intervals + 1e-4
    error = (result - vector.view(4, 256)).abs() / vector.view(4, 256).abs().amax(1, keepdim=True)
    assert error.max() <= 1 / num_intervals + 1e-6


def test_qsgd_rounds_anew_in_each_message_and_for_each_seed() -> None:
    vector = vector_of(256)
    first, second = (QSGD(4, error_feedback=False).codec(256, torch.float32, seed=seed) for seed in (1, 2))
    assert not torch.equal(first.encode(vector), second.encode(vector))
    assert not torch.equal(first.encode(vector), first.encode(vector))


def test_qsgd_with_feedback_stays_bounded_where_rounding_at_random_would_not() -> None:
    codec: Any = QSGD(2).codec(512, torch.float32)
    for step in range(200):
        codec.encode(vector_of(512, seed=step))
    assert codec.residual.abs().max() <= 2 * 5  # below max |g| * s / (s - 1/2)


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"bits": 1}, "Sign"),
        ({"bits": 9}, "Half"),
        ({"bucket": 12}, "512"),
        ({"norm": "euclidean"}, "error_feedback=False"),
        ({"bits": 2, "rounding": "random"}, "bits=3"),
        ({"norm": "euclidean", "rounding": "nearest", "error_feedback": False}, 'norm="max"'),
        ({"norm": "l1"}, "euclidean"),
        ({"rounding": "up"}, "nearest"),
    ],
)
def test_qsgd_refuses_what_cannot_work_and_names_what_can(settings, remedy) -> None:
    with pytest.raises(MethodError, match=remedy):
        QSGD(**settings)


def test_bytes_are_those_of_the_formulas() -> None:
    n = 1_000_000
    assert Half().message_bytes(n, torch.float32) == 2 * n
    assert Sign(bucket=1000).message_bytes(n, torch.float32) == n / 8 + 4 * 1000
    assert QSGD(4, bucket=1000).message_bytes(n, torch.float32) == n / 2 + 4 * 1000
    assert QSGD(3, bucket=512).message_bytes(13, torch.float32) == 4 + 5


def test_sign_sends_signs_and_the_mean_magnitude_of_a_bucket() -> None:
    vector = torch.tensor([1.0, -2.0, 3.0, -2.0, 0.0, 0.0, 0.0, 0.0, 5.0])
    codec = Sign(bucket=8, error_feedback=False).codec(9, torch.float32)
    assert decoded(codec, codec.encode(vector)).tolist() == [1, -1, 1, -1, 1, 1, 1, 1, 5]


def test_half_rounds_like_torch_and_feedback_keeps_what_overflows() -> None:
    vector = vector_of(100)
    codec = Half("bfloat16", error_feedback=False).codec(100, torch.float32)
    assert torch.equal(decoded(codec, codec.encode(vector)), vector.bfloat16().float())
    saturating = Half().codec(1, torch.float32)
    sent = torch.zeros(1)
    saturating.add(saturating.encode(torch.tensor([100_000.0])), sent)
    assert sent.item() == 65504
    saturating.add(saturating.encode(torch.zeros(1)), sent)
    assert sent.item() == pytest.approx(100_000, rel=1e-3)


def test_half_refuses_other_formats() -> None:
    with pytest.raises(MethodError, match="bfloat16"):
        Half("float8")  # type: ignore[arg-type]
