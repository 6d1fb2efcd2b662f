"""What every compression keeps: one contract, applied to each of them."""

from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.data import (
    QSGD,
    Codec,
    Compression,
    ErrorFeedback,
    Half,
    MomentumCorrection,
    NoCompression,
    RandomK,
    Sign,
    Threshold,
    TopK,
)

PLAIN: list[Compression] = [
    NoCompression(),
    Half(error_feedback=False),
    Half("bfloat16", error_feedback=False),
    Sign(error_feedback=False),
    Sign(bucket=8, error_feedback=False),
    *(QSGD(bits, bucket=64, error_feedback=False) for bits in range(2, 9)),
    QSGD(4, norm="euclidean", error_feedback=False),
    QSGD(4, rounding="nearest", error_feedback=False),
    TopK(0.01, error_feedback=False),
    TopK(0.3, values="float16", error_feedback=False),
    TopK(0.6, values="two-bit", error_feedback=False),
    TopK(1.0, error_feedback=False),
    TopK(0.1, chunk=64, error_feedback=False),
    RandomK(0.05, error_feedback=False),
    RandomK(0.5, values="bfloat16", error_feedback=False),
    Threshold(0.5, error_feedback=False),
    Threshold(share=0.05, error_feedback=False),
]
WITH_FEEDBACK: list[Compression] = [
    Half(),
    Half("bfloat16"),
    Sign(),
    *(QSGD(bits, bucket=64) for bits in range(2, 9)),
    QSGD(3, rounding="random"),
    TopK(0.01),
    TopK(0.2, values="float16"),
    TopK(0.2, values="two-bit"),
    TopK(0.05, chunk=64),
    RandomK(0.05),
    Threshold(0.5),
    Threshold(share=0.05),
]
SPARSE = [each for each in PLAIN + WITH_FEEDBACK if each.is_sparse]
CORRECTED: list[Compression] = [
    TopK(0.02, momentum=MomentumCorrection(warm_up_steps=3)),
    RandomK(0.1, momentum=MomentumCorrection(nesterov=True)),
    Threshold(share=0.1, momentum=MomentumCorrection(clip_norm=1.0)),
]
ALL = PLAIN + WITH_FEEDBACK + CORRECTED
LOSSY = [each for each in ALL if not each.is_lossless]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
LENGTHS = [0, 1, 2, 7, 8, 9, 63, 64, 65, 1000]


def vector_of(length: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def decoded(codec: Codec, message: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    out = torch.full((codec.num_elements,), 7.0, dtype=dtype)
    codec.decode(message, out)
    return out


each_compression = pytest.mark.parametrize("compression", ALL, ids=str)


@each_compression
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_messages_of_any_length_and_dtype_can_be_read_by_another_codec(compression, dtype) -> None:
    for length in LENGTHS:
        writer = compression.codec(length, dtype, seed=1)
        reader = compression.codec(length, dtype, seed=2)  # another rank: a message needs nothing but itself
        message = writer.encode(vector_of(length, dtype))
        assert message.dtype == torch.uint8
        assert message.dim() == 1
        assert torch.equal(decoded(writer, message, dtype), decoded(reader, message, dtype))


@each_compression
def test_a_message_has_the_length_of_the_formula(compression) -> None:
    for length in [*LENGTHS, 20_000]:
        codec = compression.codec(length, torch.float32)
        message = codec.encode(vector_of(length))
        if codec.fixed_bytes is not None:
            assert message.numel() == codec.fixed_bytes == compression.message_bytes(length, torch.float32)


@each_compression
def test_add_is_the_weighted_sum_of_what_decode_gives(compression) -> None:
    codec = compression.codec(1000, torch.float32)
    message = codec.encode(vector_of(1000))
    before = vector_of(1000, seed=5)
    out = before.clone()
    codec.add(message, out, weight=-0.25)
    torch.testing.assert_close(out, before - 0.25 * decoded(codec, message))


@each_compression
def test_strided_vectors_and_messages_from_the_middle_of_a_buffer_are_the_same(compression) -> None:
    vector = vector_of(1000)
    message = compression.codec(1000, torch.float32).encode(vector)
    strided = torch.stack([vector, torch.zeros(1000)], dim=1)[:, 0]
    assert not strided.is_contiguous()
    codec = compression.codec(1000, torch.float32)
    assert torch.equal(codec.encode(strided), message)
    plain = decoded(codec, message)
    for offset in range(1, 8):
        buffer = torch.zeros(message.numel() + 8, dtype=torch.uint8)
        buffer[offset : offset + message.numel()] = message
        out = torch.zeros(1000, 2)[:, 1]
        codec.decode(buffer[offset : offset + message.numel()], out)
        assert torch.equal(out, plain)


@each_compression
def test_out_may_have_another_dtype(compression) -> None:
    codec = compression.codec(100, torch.bfloat16)
    message = codec.encode(vector_of(100, torch.bfloat16))
    wide = decoded(codec, message, torch.float64)
    torch.testing.assert_close(decoded(codec, message, torch.bfloat16), wide.to(torch.bfloat16), rtol=1e-2, atol=1e-2)


@each_compression
def test_the_same_seed_gives_the_same_messages_and_saved_state_goes_on(compression) -> None:
    vectors = [vector_of(500, seed=k) for k in range(6)]
    first = compression.codec(500, torch.float32, seed=3)
    messages = [first.encode(vector) for vector in vectors[:3]]
    saved = first.state_dict()
    messages += [first.encode(vector) for vector in vectors[3:]]
    second = compression.codec(500, torch.float32, seed=3)
    second.load_state_dict(saved)
    again = compression.codec(500, torch.float32, seed=3)
    for message, other in zip(messages, [again.encode(v) for v in vectors], strict=True):
        assert torch.equal(message, other)
    for message, other in zip(messages[3:], [second.encode(v) for v in vectors[3:]], strict=True):
        assert torch.equal(message, other)


@each_compression
def test_encoding_leaves_the_vector_alone(compression) -> None:
    vector = vector_of(300)
    compression.codec(300, torch.float32).encode(vector)
    assert torch.equal(vector, vector_of(300))


@each_compression
def test_the_number_of_threads_changes_nothing(compression) -> None:
    vector = vector_of(200_003)
    threads = torch.get_num_threads()
    try:
        messages, results = [], []
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            codec = compression.codec(200_003, torch.float32)
            messages.append(codec.encode(vector))
            results.append(decoded(codec, messages[-1]))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(messages[0], messages[1])
    assert torch.equal(messages[0], messages[2])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@each_compression
def test_settings_are_frozen_comparable_and_printable(compression) -> None:
    assert compression == eval(repr(compression))
    assert hash(compression) == hash(eval(repr(compression)))
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        compression.share = 0.5


def test_settings_print_as_one_would_write_them() -> None:
    settings = [TopK(0.01), QSGD(4), Half(), Threshold(0.01), Threshold(share=0.05), NoCompression()]
    words = ["TopK(0.01)", "QSGD(4)", "Half('float16')", "Threshold(0.01)", "Threshold(share=0.05)", "NoCompression()"]
    assert [str(each) for each in settings] == words
    assert str(QSGD(8, rounding="random")) == "QSGD(8, rounding='random')"


@pytest.mark.parametrize("compression", [NoCompression()], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lossless_gives_back_every_bit(compression, dtype) -> None:
    vector = vector_of(100, dtype)
    vector[3], vector[4] = torch.nan, torch.inf
    codec = compression.codec(100, dtype)
    torch.testing.assert_close(decoded(codec, codec.encode(vector), dtype), vector, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("compression", [each for each in LOSSY if each not in PLAIN[1:3]], ids=str)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_lossy_refuses_what_is_not_finite_and_goes_on(compression, bad) -> None:
    codec = compression.codec(100, torch.float32)
    vector = vector_of(100)
    vector[17] = bad
    with pytest.raises(MethodError, match="component 17"):
        codec.encode(vector)
    fresh = compression.codec(100, torch.float32)
    assert torch.equal(codec.encode(vector_of(100)), fresh.encode(vector_of(100)))


def test_half_without_feedback_passes_on_what_is_not_finite() -> None:
    codec = Half(error_feedback=False).codec(4, torch.float32)
    result = decoded(codec, codec.encode(torch.tensor([torch.nan, torch.inf, 1e6, 1.0])))
    assert result[0].isnan()
    assert result[1:].tolist() == [torch.inf, torch.inf, 1.0]


@pytest.mark.parametrize("compression", WITH_FEEDBACK, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_error_feedback_loses_nothing(compression, dtype) -> None:
    codec = compression.codec(1000, dtype, seed=1)
    assert isinstance(codec, ErrorFeedback)
    given_sum = torch.zeros(1000, dtype=torch.float64)
    sent_sum = torch.zeros(1000, dtype=torch.float64)
    for step in range(30):
        vector = vector_of(1000, dtype, seed=step)
        given_sum += vector
        codec.add(codec.encode(vector), sent_sum)
    torch.testing.assert_close(sent_sum + codec.residual.double(), given_sum, rtol=0, atol=2e-5)
    assert codec.residual.abs().max() < 200  # and what is kept does not grow without bound


@pytest.mark.parametrize("compression", SPARSE + CORRECTED, ids=str)
def test_sparse_add_touches_only_its_components(compression) -> None:
    codec = compression.codec(1000, torch.float32)
    message = codec.encode(vector_of(1000))
    sparse = codec.inner if hasattr(codec, "inner") else codec
    places = sparse.sent(message)
    assert places.tolist() == sorted(set(places.tolist()))
    out = torch.full((1000,), torch.nan)
    codec.add(message, out)
    untouched = torch.ones(1000, dtype=torch.bool)
    untouched[places] = False
    out[places] = torch.nan
    assert out.isnan().all()
    result = decoded(codec, message)
    assert not result[untouched].any()


@pytest.mark.parametrize("compression", LOSSY, ids=str)
def test_a_zero_vector_is_sent_as_zeros(compression) -> None:
    codec = compression.codec(300, torch.float32)
    assert not decoded(codec, codec.encode(torch.zeros(300))).any()


@pytest.mark.parametrize("compression", ALL, ids=str)
@settings(max_examples=10, deadline=None)
@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), max_size=200),
    repeat=st.integers(1, 3),
)
def test_any_finite_vector_makes_the_trip(compression, values, repeat) -> None:
    vector = torch.tensor(values, dtype=torch.float32).repeat(repeat)
    codec = compression.codec(vector.numel(), torch.float32)
    result = decoded(codec, codec.encode(vector))
    if not isinstance(compression, Half):  # without feedback it may overflow, as documented
        assert result.isfinite().all()


@pytest.mark.parametrize("compression", ALL, ids=str)
def test_a_damaged_message_is_refused_or_read_but_never_out_of_bounds(compression) -> None:
    codec = compression.codec(1000, torch.float32)
    message = codec.encode(vector_of(1000))
    out = torch.zeros(1000)
    with pytest.raises(MethodError):
        codec.decode(message[:-1], out)
    with pytest.raises(MethodError):
        codec.decode(torch.empty(0, dtype=torch.uint8), out)
    with pytest.raises(MethodError):
        codec.decode(message.to(torch.int32), out)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        noise = torch.randint(0, 256, message.shape, generator=generator, dtype=torch.uint8)
        try:
            codec.decode(noise, out)
        except MethodError:
            continue


@pytest.mark.parametrize("compression", ALL, ids=str)
def test_wrong_vectors_are_refused(compression) -> None:
    codec = compression.codec(10, torch.float32)
    for wrong in (torch.zeros(11), torch.zeros(2, 5), torch.zeros(10, dtype=torch.int64)):
        with pytest.raises(MethodError):
            codec.encode(wrong)
    with pytest.raises(MethodError, match="floating"):
        compression.codec(10, torch.int32)
