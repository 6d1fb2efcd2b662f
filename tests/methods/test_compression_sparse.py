"""Top-k, random-k, threshold, their places and values, and momentum correction."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.test_compression import decoded, vector_of

from sandtable.errors import MethodError
from sandtable.methods.data import MomentumCorrection, RandomK, Threshold, TopK
from sandtable.methods.data.compression.packing import places_bytes, read_places, write_places
from sandtable.methods.data.compression.values import values_of


@settings(max_examples=200, deadline=None)
@given(num_elements=st.integers(1, 3000), data=st.data())
def test_places_make_the_trip_in_the_bytes_of_the_formula(num_elements, data) -> None:
    places = sorted(data.draw(st.sets(st.integers(0, num_elements - 1), max_size=num_elements)))
    message = write_places(torch.tensor(places, dtype=torch.int64), num_elements)
    assert message.numel() == places_bytes(num_elements, len(places))
    assert read_places(message, num_elements, len(places)).tolist() == places


def test_places_at_the_far_end_of_a_long_vector_make_the_trip() -> None:
    num_elements = 2**32 - 1
    places = torch.tensor([0, 1, 2**31, 2**32 - 3, 2**32 - 2])
    message = write_places(places, num_elements)
    assert message.numel() == places_bytes(num_elements, 5) < 5 * 5
    assert torch.equal(read_places(message, num_elements, 5), places)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.3, 0.5, 0.9])
def test_places_cost_little_more_than_the_least_possible(share) -> None:
    num_elements = 1_000_000
    count = round(share * num_elements)
    entropy = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
    least = num_elements * entropy / 8
    assert least <= places_bytes(num_elements, count) < 1.15 * least + num_elements / 8 * (share > 0.6)


@settings(max_examples=50, deadline=None)
@given(length=st.integers(0, 3000), seed=st.integers(0, 100))
def test_two_bit_values_are_the_mean_magnitudes_of_their_side_of_the_mean(length, seed) -> None:
    values = torch.randn(length, generator=torch.Generator().manual_seed(seed))
    two_bit = values_of("two-bit", torch.float32)
    message = two_bit.write(values)
    assert message.numel() == two_bit.num_bytes(length) == math.ceil(length / 4) + 8 * math.ceil(length / 1024)
    expected = torch.empty(length)
    for group, out in zip(values.split(1024), expected.split(1024), strict=True):
        is_large = group.abs() > group.abs().mean()
        for side in (is_large, ~is_large):
            out[side] = group[side].sign() * group[side].abs().mean()
    # Messages begin at any place of a buffer.
    torch.testing.assert_close(
        two_bit.read(torch.cat([torch.zeros(3, dtype=torch.uint8), message])[3:], length), expected
    )


@pytest.mark.parametrize("length", [1, 10, 1000, 20_000, 100_000])
@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 1.0])
def test_top_k_sends_exactly_the_largest(length, share) -> None:
    vector = vector_of(length)
    codec: Any = TopK(share, error_feedback=False).codec(length, torch.float32)
    result = decoded(codec, codec.encode(vector))
    k = max(1, round(share * length))
    expected = torch.zeros(length)
    largest = vector.abs().topk(k).indices
    expected[largest] = vector[largest]
    assert torch.equal(result, expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_of_equal_magnitudes_top_k_sends_the_first(threads) -> None:
    vector = torch.ones(200_000)
    vector[::2] = -1
    vector[150_000] = 2
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        codec: Any = TopK(0.1, error_feedback=False).codec(200_000, torch.float32)
        places = codec.sent(codec.encode(vector))
    finally:
        torch.set_num_threads(before)
    assert places.tolist() == [*range(19_999), 150_000]


def test_top_k_by_chunks_sends_the_largest_of_each() -> None:
    vector = vector_of(1000) * torch.logspace(0, 3, 1000)  # the whole vector's largest are all at its end
    codec: Any = TopK(0.05, chunk=100, error_feedback=False).codec(1000, torch.float32)
    sent = decoded(codec, codec.encode(vector)).view(10, 100)
    assert (sent != 0).sum(1).tolist() == [5] * 10
    assert torch.equal(sent.abs().amax(1), vector.view(10, 100).abs().amax(1))


def test_sparse_loco_is_two_bits_a_value_in_chunks() -> None:
    settings = TopK.sparse_loco()
    n = 4096 * 16
    codec: Any = settings.codec(n, torch.float32)
    message = codec.encode(vector_of(n))
    values = 16 * 64 * 2 / 8 + 8
    assert message.numel() == settings.message_bytes(n, torch.float32) == 4 + places_bytes(n, 16 * 64) + values
    result = decoded(codec, message)
    assert len(result[result != 0].unique()) == 4


def test_sparse_values_of_float64_are_exact() -> None:
    vector = vector_of(100, torch.float64)
    codec: Any = TopK(1.0, error_feedback=False).codec(100, torch.float64)
    assert torch.equal(decoded(codec, codec.encode(vector), torch.float64), vector)
    assert TopK(0.5).message_bytes(100, torch.float64) - TopK(0.5).message_bytes(100, torch.float32) == 4 * 50


@pytest.mark.parametrize("length", [1000, 1003])
def test_random_k_is_unbiased(length) -> None:
    vector = vector_of(length)
    codec: Any = RandomK(0.1, error_feedback=False).codec(length, torch.float32)
    total = torch.zeros(length)
    trials = 4000
    for _ in range(trials):
        codec.add(codec.encode(vector), total)
    error = (total / trials - vector) / (vector.abs() * (9.5 / trials) ** 0.5)  # its standard error: p = 1/10
    assert error.abs().max() < 5
    assert error.pow(2).mean() == pytest.approx(1, abs=0.25)


def test_random_k_draws_each_component_as_often_and_the_same_for_all_with_one_seed() -> None:
    first: Any
    second: Any
    first, second = (RandomK(0.25).codec(40, torch.float32, seed=9) for _ in range(2))
    count = torch.zeros(40)
    for step in range(1000):
        message = first.encode(vector_of(40, seed=step))
        assert torch.equal(first.inner.sent(message), second.inner.sent(second.encode(vector_of(40, seed=step + 1))))
        count[first.inner.sent(message)] += 1
    assert (count - 250).abs().max() < 5 * (1000 * 0.25 * 0.75) ** 0.5


def test_random_k_sends_no_places() -> None:
    assert RandomK(0.01).message_bytes(10_000, torch.float32) == 12 + 4 * 100


def test_a_static_threshold_sends_what_exceeds_it() -> None:
    vector = torch.tensor([0.5, -0.6, 0.4, 0.0, -0.5, 3.0])
    codec: Any = Threshold(0.5, error_feedback=False).codec(6, torch.float32)
    message = codec.encode(vector)
    assert codec.sent(message).tolist() == [1, 5]
    assert message.numel() == 4 + places_bytes(6, 2) + 8
    nothing = codec.encode(torch.zeros(6))
    assert nothing.numel() == 4


@pytest.mark.parametrize("length", [100, 1000, 600_000])
def test_an_adaptive_threshold_sends_its_share_whatever_the_scale(length) -> None:
    codec: Any = Threshold(share=0.05, error_feedback=False).codec(length, torch.float32)
    for scale in (1e-6, 1.0, 1e6):
        count = codec.sent(codec.encode(vector_of(length) * scale)).numel()
        assert count == pytest.approx(0.05 * length, rel=0.04)


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: TopK(0.0), "0.01"),
        (lambda: TopK(1.5), "0.01"),
        (lambda: TopK(0.1, chunk=0), "chunk"),
        (lambda: TopK(0.1, values="int4"), "two-bit"),  # type: ignore[arg-type]
        (lambda: TopK(0.1, decay=0.9, error_feedback=False), "decay=1"),
        (lambda: TopK(0.1, momentum=MomentumCorrection(), error_feedback=False), "error_feedback=True"),
        (lambda: RandomK(-1), "0.01"),
        (lambda: Threshold(), "share=0.05"),
        (lambda: Threshold(0.1, share=0.1), "share=0.05"),
        (lambda: Threshold(-0.1), "at least 0"),
        (lambda: Threshold(0.1, momentum=MomentumCorrection(warm_up_steps=5)), "share"),
        (lambda: TopK(0.1, momentum=0.9), "momentum must be a MomentumCorrection"),  # type: ignore[arg-type]
        (lambda: Threshold(0.1, momentum=0.9), "momentum must be a MomentumCorrection"),  # type: ignore[arg-type]
        (lambda: MomentumCorrection(factor=1.0), "0.9"),
        (lambda: MomentumCorrection(clip_norm=0.0), "None"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_what_can(make, remedy) -> None:
    with pytest.raises(MethodError, match=remedy):
        make()


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_correction_that_sends_all_is_sgd_with_momentum(nesterov) -> None:
    weight = torch.nn.Parameter(vector_of(50))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, nesterov=nesterov)
    # A limit that nothing exceeds, and then everything: what waited has the momentum it would have had.
    codec: Any = Threshold(1e9, momentum=MomentumCorrection(factor=0.9, nesterov=nesterov)).codec(50, torch.float32)
    ours = vector_of(50)
    for step in range(5):
        weight.grad = vector_of(50, seed=step + 1)
        optimizer.step()
        if step == 4:
            codec.inner.limit = 0.0
        codec.add(codec.encode(vector_of(50, seed=step + 1)), ours, weight=-0.1)
    torch.testing.assert_close(ours, weight.detach(), rtol=1e-5, atol=1e-6)
    assert not codec.velocity.any()


def test_momentum_is_masked_where_a_component_was_sent() -> None:
    codec: Any = TopK(0.2, momentum=MomentumCorrection()).codec(5, torch.float32)
    message = codec.encode(torch.tensor([1.0, 5.0, 2.0, 0.0, 1.0]))
    assert codec.inner.sent(message).tolist() == [1]
    assert codec.velocity.tolist() == [1, 0, 2, 0, 1]
    assert codec.unsent.tolist() == [1, 0, 2, 0, 1]


def test_long_vectors_are_cut_to_the_norm_asked_for() -> None:
    codec: Any = TopK(1.0, momentum=MomentumCorrection(clip_norm=2.0)).codec(100, torch.float32)
    sent = decoded(codec, codec.encode(vector_of(100) * 10))
    assert sent.norm().item() == pytest.approx(2.0, rel=1e-5)
    small = TopK(1.0, momentum=MomentumCorrection(clip_norm=1e6)).codec(100, torch.float32)
    torch.testing.assert_close(decoded(small, small.encode(vector_of(100))), vector_of(100))


def test_the_share_falls_exponentially_in_the_warm_up() -> None:
    correction = MomentumCorrection(warm_up_steps=4)
    shares = [correction.share_at(step, 0.001) for step in range(6)]
    assert shares[0] == pytest.approx(0.25)
    assert [b / a for a, b in pairwise(shares[:5])] == pytest.approx([(0.001 / 0.25) ** 0.25] * 4)
    assert shares[4] == shares[5] == 0.001
    codec: Any = TopK(0.001, momentum=correction).codec(10_000, torch.float32)
    sizes = []
    for step in range(6):
        assert (codec.fixed_bytes is None) == (step < 4)
        sizes.append(codec.inner.sent(codec.encode(vector_of(10_000, seed=step))).numel())
    assert sizes == [round(10_000 * share) for share in shares]
