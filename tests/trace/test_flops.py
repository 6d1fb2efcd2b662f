"""FLOPs, held against torch's own counter and against arithmetic."""

import json

import pytest
import torch
from tests.trace.building import spec
from torch.utils.flop_counter import FlopCounterMode

from sandtable.errors import TraceError
from sandtable.trace import Signature, TensorSpec, flops

aten = torch.ops.aten


def counted(op, *args) -> tuple[int, Signature]:
    """Return what torch counts for a call on the meta device, and the signature sandtable would record."""
    with FlopCounterMode(display=False) as counter:
        result = op(*args)
    outputs = [item for item in (result if isinstance(result, tuple) else (result,)) if isinstance(item, torch.Tensor)]
    plain = [arg for arg in args if not isinstance(arg, torch.Tensor)]
    inputs = tuple(_spec(arg) for arg in args if isinstance(arg, torch.Tensor))
    name = op._schema.name if isinstance(op, torch._ops.OpOverload) else op._qualified_op_name
    signature = Signature(name, inputs, tuple(map(_spec, outputs)), json.dumps(plain, default=str))
    return counter.get_total_flops(), signature


def _spec(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()), "cuda")


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.mm, (meta(3, 5), meta(5, 7))),
        (aten.addmm, (meta(7), meta(3, 5), meta(5, 7))),
        (aten.bmm, (meta(2, 3, 5), meta(2, 5, 7))),
        (aten.baddbmm, (meta(2, 3, 7), meta(2, 3, 5), meta(2, 5, 7))),
    ],
)
def test_matrix_products_count_as_torch_counts_them(op, args):
    expected, signature = counted(op, *args)
    assert expected > 0
    assert flops(signature) == expected


def test_scaled_products_count_like_plain_ones():
    one = spec(1)
    a, b = spec(16, 32, dtype="float8_e4m3fn"), spec(32, 64, dtype="float8_e4m3fn", strides=(1, 32))
    assert flops(Signature("aten::_scaled_mm", (a, b, one, one), (spec(16, 64),))) == 2 * 16 * 32 * 64


CONVOLUTIONS = {
    "plain": ((2, 6, 9, 9), (4, 6, 3, 3), [1, 1], [1, 1], False, 1),
    "strided": ((2, 6, 9, 9), (4, 6, 3, 3), [2, 2], [0, 0], False, 1),
    "one dimension": ((2, 6, 9), (4, 6, 5), [1], [2], False, 1),
    "grouped": ((2, 6, 9, 9), (4, 3, 3, 3), [1, 1], [1, 1], False, 2),
    "transposed": ((2, 6, 9, 9), (6, 4, 3, 3), [2, 2], [1, 1], True, 1),
    "transposed and grouped": ((2, 6, 9, 9), (6, 4, 3, 3), [2, 2], [1, 1], True, 3),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_count_as_torch_counts_them(name: str):
    expected, signature = counted(aten.convolution, *_convolution(name))
    assert expected > 0
    assert flops(signature) == expected


@pytest.mark.parametrize("mask", [[True, True, False], [False, True, True], [True, False, False], [False, False, True]])
@pytest.mark.parametrize("name", ["plain", "strided", "one dimension", "transposed"])
def test_gradients_of_convolutions_count_as_torch_counts_them(name: str, mask: list[bool]):
    expected, signature = counted(aten.convolution_backward, *_convolution_backward(name, mask))
    assert flops(signature) == expected


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_each_gradient_of_a_convolution_costs_as_much_as_the_forward_pass_also_with_groups(name: str):
    forward = flops(counted(aten.convolution, *_convolution(name))[1])
    assert flops(counted(aten.convolution_backward, *_convolution_backward(name, [True, True, True]))[1]) == 2 * forward


def _convolution(name: str):
    x, weight, stride, padding, transposed, groups = CONVOLUTIONS[name]
    dilation, output_padding = [1] * len(stride), [0] * len(stride)
    return meta(*x), meta(*weight), None, stride, padding, dilation, transposed, output_padding, groups


def _convolution_backward(name: str, mask: list[bool]):
    x, weight, _, stride, padding, dilation, transposed, output_padding, groups = _convolution(name)
    grad = aten.convolution(x, weight, None, stride, padding, dilation, transposed, output_padding, groups)
    return grad, x, weight, [grad.shape[1]], stride, padding, dilation, transposed, output_padding, groups, mask


QUERY, KEY, VALUE = (2, 8, 128, 64), (2, 8, 256, 64), (2, 8, 256, 64)
SHARED = (2, 2, 256, 64)


@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
@pytest.mark.parametrize("key", [KEY, SHARED])
def test_fused_attention_counts_as_torch_counts_it(kind: str, key: tuple[int, ...]):
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    query, keys = spec(*QUERY), spec(*key)
    name = f"aten::_scaled_dot_product_{kind}_attention"
    forward = Signature(name, (query, keys, keys), (query,), "[0.0,true,false]")
    assert flops(forward) == sdpa_flop_count(QUERY, key, key)
    backward = Signature(
        f"{name}_backward", (query, query, keys, keys, query), (query, keys, keys), "[128,256,0.0,true]"
    )
    assert flops(backward) == sdpa_backward_flop_count(QUERY, QUERY, key, key)


def test_causal_attention_is_counted_full():
    query = spec(*QUERY)
    name = "aten::_scaled_dot_product_flash_attention"
    causal, full = (Signature(name, (query,) * 3, (query,), f"[0.0,{flag},false]") for flag in ("true", "false"))
    assert flops(causal) == flops(full)


@pytest.mark.parametrize(
    ("name", "longest", "keys"),
    [
        ("aten::_flash_attention_forward", 250, 250),  # four of 250
        ("aten::_flash_attention_forward", 500, 333),  # four between 0 and 500: a token's own is 333 long on average
        ("flash_attn::_flash_attn_varlen_forward", 400, 300),
        ("flash_attn_3::fwd", 990, 497),
        ("flash_attn_3::fwd", 1000, 250),  # a bound, because the others have tokens, too: all are taken to be equal
        ("flash_attn_3::fwd", 5000, 250),
    ],
)
def test_attention_on_packed_tokens_lies_between_the_mean_and_the_longest_sequence(name, longest, keys):
    packed, offsets = spec(1000, 8, 64), spec(5, dtype="int32")
    inputs = (packed, packed, packed, offsets, offsets)
    signature = Signature(name, inputs, (packed,), f"[{longest},{longest},0.0,true,false]")
    assert flops(signature) == 4 * 1000 * keys * 8 * 64


def test_attention_of_packages_counts_as_torchs_own():
    query, key = spec(2, 128, 8, 64), spec(2, 256, 2, 64)
    forward = 4 * 2 * 8 * 128 * 256 * 64
    for name in ("flash_attn::_flash_attn_forward", "flash_attn_3::fwd", "transformer_engine::fused_attn_fwd"):
        assert flops(Signature(name, (query, key, key), (query,))) == forward
    for name in ("flash_attn::_flash_attn_backward", "flash_attn_3::bwd", "transformer_engine::fused_attn_bwd"):
        assert flops(Signature(name, (query, query, key, key, query), (query,))) == 2.5 * forward


@pytest.mark.parametrize(("window", "keys"), [(-1, 4096), (127, 128), (8000, 4096)])
def test_a_window_limits_the_keys_that_count(window: int, keys: int):
    tokens, offsets = spec(8192, 8, 64), spec(3, dtype="int32")
    packed = (tokens, tokens, tokens, offsets, offsets)
    arguments = f"[4096,4096,0.125,true,{window},0,0.0]"
    assert flops(Signature("flash_attn_3::fwd", packed, (tokens,), arguments)) == 4 * 8192 * 8 * keys * 64
    backward = Signature("flash_attn_3::bwd", (tokens, *packed), (tokens,), arguments)
    assert flops(backward) == 10 * 8192 * 8 * keys * 64
    whole = spec(2, 4096, 8, 64)
    arguments = f"[0.0,0.125,true,{window},0,0.0,false]"
    assert flops(Signature("flash_attn::_flash_attn_forward", (whole,) * 3, (whole,), arguments)) == (
        4 * 8192 * 8 * keys * 64
    )


def test_linear_counts_rows_times_weight():
    signature = Signature("aten::linear", (spec(2, 3, 8), spec(16, 8), spec(16)), (spec(2, 3, 16),))
    assert flops(signature) == 2 * 6 * 8 * 16


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((64, 8), (4, 8, 16), 2 * 64 * 8 * 16),
        ((4, 64, 8), (8, 16), 2 * 64 * 8 * 16),
        ((4, 64, 8), (4, 8, 16), 2 * 4 * 64 * 8 * 16),
        ((64, 8), (8, 16), 2 * 64 * 8 * 16),
    ],
)
def test_grouped_products_share_rows_out_between_groups(a, b, expected):
    assert flops(Signature("aten::_grouped_mm", (spec(*a), spec(*b), spec(4, dtype="int32")))) == expected


def test_recurrent_layers_count_every_weight_once_a_row():
    time_steps, batch, size, hidden = 5, 3, 8, 16
    weights = (spec(4 * hidden, size), spec(4 * hidden, hidden), spec(4 * hidden), spec(4 * hidden))
    buffer, state = spec(4 * hidden * (size + hidden + 2)), spec(1, batch, hidden)
    inputs = (spec(time_steps, batch, size), *weights, buffer, state, state)
    forward = 2 * time_steps * batch * 4 * hidden * (size + hidden)
    assert flops(Signature("aten::_cudnn_rnn", inputs)) == forward
    backward = "aten::_cudnn_rnn_backward"
    output = spec(time_steps, batch, hidden)
    assert flops(Signature(backward, (*inputs, output, output), args="[[true,true,true,true]]")) == 2 * forward
    assert flops(Signature(backward, (*inputs, output, output), args="[[true,true,true,false]]")) == forward


def test_pointwise_operators_count_nothing():
    assert flops(Signature("aten::_thnn_fused_lstm_cell", (spec(8, 64), spec(8, 64), spec(8, 16)))) == 0
    assert flops(Signature("aten::add.Tensor", (spec(8), spec(8)), (spec(8),))) == 0


def test_overloads_count_like_their_operator():
    assert flops(Signature("aten::mm.out", (spec(3, 5), spec(5, 7), spec(3, 7)), (spec(3, 7),))) == 210


def test_a_signature_without_its_tensors_is_refused_by_name():
    with pytest.raises(TraceError, match="tensors of aten::mm must be those of its schema"):
        flops(Signature("aten::mm", (spec(3, 5),)))


def test_a_whole_model_counts_as_torch_counts_it():
    """Every operator of a small CNN and attention block, forward and backward, recorded through the dispatcher."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        total = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            flat = [leaf for arg in args for leaf in (arg if isinstance(arg, list | tuple) else [arg])]
            inputs = tuple(_spec(leaf) for leaf in flat if isinstance(leaf, torch.Tensor))
            results = result if isinstance(result, list | tuple) else (result,)
            outputs = tuple(_spec(leaf) for leaf in results if isinstance(leaf, torch.Tensor))
            plain = [arg for arg in args if not isinstance(arg, torch.Tensor)]
            text = json.dumps(plain, default=str)
            self.total += flops(Signature(func.name(), inputs, outputs, text))
            return result

    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.ConvTranspose2d(8, 4, 3),
        torch.nn.Flatten(2),
        torch.nn.Linear(17 * 17, 32),
        torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
    )
    with FlopCounterMode(display=False) as counter, Recorder() as recorder:
        model(torch.randn(2, 3, 32, 32)).sum().backward()
    assert recorder.total == counter.get_total_flops() > 0
