"""FLOPs: the arithmetic of one operator, from its shapes alone.

The convention is that of torch.utils.flop_counter and of the literature: a multiply and an add are two operations, so a
product of an (m, k) and a (k, n) matrix is 2·m·n·k. Only matrix products count, in whatever form they come (linear
layers, convolutions, attention, recurrent layers); biases, norms, activations, fused LSTM cells and optimizers are
pointwise and count 0, since memory traffic (`movement.py`) decides how long those take.

- Causal attention counts in full, as in torch.utils.flop_counter: the mask halves the work of a good kernel, not the
  count. Backward of fused attention is five products (the scores again, dP, dV, dQ, dK) against two forward. A sliding
  window does limit the count: it is the model's, and over long sequences there is little else.
- Grouped convolutions count what each group does, forward and backward. torch.utils.flop_counter counts the weight
  gradient of a grouped convolution `groups` times too often; here it equals the forward count.
- Gradients that are not needed (`output_mask`) do not count.
"""

from collections.abc import Callable
from math import prod

from sandtable.errors import TraceError
from sandtable.trace.signature import Signature, TensorSpec

__all__ = ["ATTENTION_PACKAGES", "attention_window", "flops", "num_packed", "square_flops"]

Shape = tuple[int, ...]

ATTENTION_PACKAGES = ("flash_attn::", "flash_attn_3::", "xformers_flash::", "xformers_flash3::", "transformer_engine::")
"""The beginnings of the names of attention that is not torch's own.

These operators have the mask as their first boolean, and sums in a fixed order as the second backward.
"""


def flops(signature: Signature) -> int:
    """Return the floating-point operations of one launch; 0 for operators that are not matrix products."""
    counted, window = square_flops(signature), attention_window(signature)
    if not window or not counted:
        return counted
    key = signature.inputs[2 if _is_backward(signature) else 1]
    num_keys = _padded(signature, _heads_first(key.shape))[-2]
    return counted * min(window + 1, num_keys) // num_keys


def attention_window(signature: Signature) -> int:
    """Return how many keys to the left a query of these packages sees at most; 0 if all.

    The two sides of a window are the integers after the mask; -1 stands for no limit.
    """
    if not signature.name.startswith(ATTENTION_PACKAGES):
        return 0
    arguments = signature.arguments
    mask_at = next((place for place, argument in enumerate(arguments) if isinstance(argument, bool)), len(arguments))
    left = arguments[mask_at + 1 : mask_at + 2]
    return left[0] if left and isinstance(left[0], int) and not isinstance(left[0], bool) and left[0] > 0 else 0


def square_flops(signature: Signature) -> int:
    """Return the same, with attention counted as if it had no window."""
    if signature.work is not None:
        return signature.work.total_flops
    formula = _FORMULAS.get(signature.name)
    if formula is None:
        return 0
    try:
        return formula(signature)
    except (IndexError, ValueError) as error:
        raise TraceError(
            f"tensors of {signature.op} must be those of its schema, but got "
            f"{[spec.shape for spec in signature.inputs]} with arguments {signature.args} ({error}); "
            "capture the run with a version of torch that this version of sandtable supports"
        ) from error


def _matmul(a: TensorSpec, b: TensorSpec) -> int:
    """Count 2·m·n·k for a (…, m, k) and b (…, k, n), times the batch of a."""
    return 2 * a.num_elements * b.shape[-1]


def _mm(signature: Signature) -> int:
    return _matmul(signature.inputs[0], signature.inputs[1])


def _addmm(signature: Signature) -> int:
    """Skip the first input: the product is added to it."""
    return _matmul(signature.inputs[1], signature.inputs[2])


def _linear(signature: Signature) -> int:
    """Count 2·rows·in·out for x (…, in) and weight (out, in)."""
    x, weight = signature.inputs[:2]
    return 2 * x.num_elements * weight.shape[0]


def _vector(signature: Signature) -> int:
    """Count two operations per element of the matrix or vector that is multiplied by a vector."""
    return 2 * signature.inputs[0].num_elements


def _addmv(signature: Signature) -> int:
    return 2 * signature.inputs[1].num_elements


def _grouped_mm(signature: Signature) -> int:
    """Count (M, K)·(G, K, N), (G, M, K)·(K, N), (M, K)·(K, N) or (G, M, K)·(G, K, N).

    Where at most one operand has a group dimension, the other's rows (or columns) are divided among the groups, and
    the whole is as much as one product of the flat shapes. Where both have it, it is a batch.
    """
    a, b = signature.inputs[:2]
    num_groups = a.shape[0] if len(a.shape) == 3 and len(b.shape) == 3 else 1
    return 2 * num_groups * a.shape[-2] * a.shape[-1] * b.shape[-1]


def _convolution(signature: Signature) -> int:
    """Count the general operator, whose arguments include whether it is transposed."""
    return _convolution_transposed(signature) if _is_transposed(signature) else _convolution_plain(signature)


def _convolution_plain(signature: Signature) -> int:
    """Count the whole filter of its channel once per output element: weight is (out, in / groups, filter)."""
    return 2 * signature.outputs[0].num_elements * prod(signature.inputs[1].shape[1:])


def _convolution_transposed(signature: Signature) -> int:
    """Count the whole filter of its channel once per input element: weight is (in, out / groups, filter)."""
    return 2 * signature.inputs[0].num_elements * prod(signature.inputs[1].shape[1:])


def _convolution_backward(signature: Signature) -> int:
    """Count the gradients of input and weight, each as much as the forward pass; that of the bias is a sum."""
    grad_output, x, weight = signature.inputs[:3]
    positions = x if _is_transposed(signature) else grad_output
    num_gradients = sum(_output_mask(signature, 3)[:2])
    return num_gradients * 2 * positions.num_elements * prod(weight.shape[1:])


def _is_transposed(signature: Signature) -> bool:
    """Return `transposed`, the only boolean argument of these schemas; `output_mask` is a list of them."""
    return next((argument for argument in signature.arguments if isinstance(argument, bool)), False)


def _output_mask(signature: Signature, length: int) -> list[bool]:
    for argument in reversed(signature.arguments):
        if isinstance(argument, list) and len(argument) == length and all(isinstance(item, bool) for item in argument):
            return argument
    return [True] * length


def _attention(signature: Signature) -> int:
    query, key, value = (spec.shape for spec in signature.inputs[:3])
    return _attention_products(query, key, value, num_with_key=1, num_with_value=1)


def _attention_backward(signature: Signature) -> int:
    query, key, value = (spec.shape for spec in signature.inputs[1:4])
    return _attention_products(query, key, value, num_with_key=3, num_with_value=2)


def _attention_products(query: Shape, key: Shape, value: Shape, *, num_with_key: int, num_with_value: int) -> int:
    """Count products over (batch, heads, sequence, dim). Heads are the query's: with fewer key heads they are shared.

    With the key's dim: Q·Kᵀ forward; Q·Kᵀ again, dQ = dS·K, dK = dSᵀ·Q backward.
    With the value's: P·V forward; dP = dO·Vᵀ, dV = Pᵀ·dO backward.
    """
    scores = prod(query[:-1]) * key[-2]
    return 2 * scores * (num_with_key * query[-1] + num_with_value * value[-1])


def _flash(signature: Signature) -> int:
    query, key, value = (_heads_first(spec.shape) for spec in signature.inputs[:3])
    return _attention_products(query, _padded(signature, key), value, num_with_key=1, num_with_value=1)


def _flash_backward(signature: Signature) -> int:
    query, key, value = (_heads_first(spec.shape) for spec in signature.inputs[1:4])
    return _attention_products(query, _padded(signature, key), value, num_with_key=3, num_with_value=2)


def _is_backward(signature: Signature) -> bool:
    return signature.name in _LOW_LEVEL_ATTENTION_BACKWARD


def _heads_first(shape: Shape) -> Shape:
    """Count (batch, sequence, heads, dim) or packed (tokens, heads, dim), as the lower-level kernels take it."""
    *batch, sequence, heads, dim = shape
    return (*batch, heads, sequence, dim)


def _padded(signature: Signature, key: Shape) -> Shape:
    """Count packed sequences, of which the record holds the number, the tokens and the longest (`max_k`), no more.

    A query meets the mean length and a third of the way to the longest: exact where all are equal, and where lengths
    spread evenly from 0 to the longest (the mean is half of it, and a token's sequence two thirds of it on average).
    A longest that would leave no token for the others is a bound that the script gives: all are taken to be equal.
    """
    if len(key) == 4:
        return key
    lengths = [item for item in signature.arguments if isinstance(item, int) and not isinstance(item, bool)]
    longest = min(lengths[1], key[-2]) if len(lengths) > 1 else key[-2]
    num_sequences = num_packed(signature)
    mean = min(longest, key[-2] / num_sequences)
    if longest > key[-2] - num_sequences + 1:
        longest = round(mean)
    return (*key[:-2], round(mean + (longest - mean) / 3), key[-1])


def num_packed(signature: Signature) -> int:
    """Return how many sequences are packed: the tensor of their starts, an integer vector, has one entry more."""
    for spec in signature.inputs[3:]:
        if spec.dtype in ("int32", "int64") and len(spec.shape) == 1 and spec.num_elements > 1:
            return spec.num_elements - 1
    return 1


def _rnn(signature: Signature) -> int:
    """Count every weight matrix of every layer and direction once per (time step, sequence) row."""
    return 2 * _rnn_rows(signature) * _rnn_weights(signature)


def _rnn_backward(signature: Signature) -> int:
    """Count the gradients of the input and, if needed, of the weights, each as much as the forward pass."""
    *_, of_weights = _output_mask(signature, 4)
    return (2 if of_weights else 1) * _rnn(signature)


def _rnn_rows(signature: Signature) -> int:
    return prod(signature.inputs[0].shape[:-1])


def _rnn_weights(signature: Signature) -> int:
    """Count the elements of the matrices between the input and the first hidden state; biases have one dim."""
    num_elements = 0
    for spec in signature.inputs[1:]:
        if len(spec.shape) == 3:
            break
        num_elements += spec.num_elements if len(spec.shape) == 2 else 0
    return num_elements


_FUSED_ATTENTION = tuple(
    f"aten::_scaled_dot_product_{kind}"
    for kind in (
        "flash_attention",
        "efficient_attention",
        "cudnn_attention",
        "fused_attention_overrideable",
        "flash_attention_for_cpu",
    )
)

_LOW_LEVEL_ATTENTION = (
    "aten::_flash_attention_forward",
    "aten::_efficient_attention_forward",
    "aten::_cudnn_attention_forward",
    "flash_attn::_flash_attn_forward",
    "flash_attn::_flash_attn_varlen_forward",
    "flash_attn_3::fwd",
    "xformers_flash::flash_fwd",
    "xformers_flash3::flash_fwd",
    "transformer_engine::fused_attn_fwd",
)
"""Query, key and value come first, as (batch, sequence, heads, dim) or packed (tokens, heads, dim)."""

_LOW_LEVEL_ATTENTION_BACKWARD = (
    "aten::_flash_attention_backward",
    "aten::_efficient_attention_backward",
    "aten::_cudnn_attention_backward",
    "flash_attn::_flash_attn_backward",
    "flash_attn::_flash_attn_varlen_backward",
    "flash_attn_3::bwd",
    "xformers_flash::flash_bwd",
    "xformers_flash3::flash_bwd",
    "transformer_engine::fused_attn_bwd",
)
"""The gradient of the output comes before them."""

_PLAIN_CONVOLUTIONS = (
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_relu",
    "aten::cudnn_convolution_add_relu",
    "aten::_slow_conv2d_forward",
    "aten::slow_conv3d_forward",
    "aten::slow_conv_dilated2d",
    "aten::slow_conv_dilated3d",
    "aten::_conv_depthwise2d",
    "aten::conv_depthwise3d",
)

_TRANSPOSED_CONVOLUTIONS = (
    "aten::cudnn_convolution_transpose",
    "aten::slow_conv_transpose2d",
    "aten::slow_conv_transpose3d",
)

_CONVOLUTIONS_BACKWARD = (
    "aten::convolution_backward",
    "aten::convolution_backward_overrideable",
    "aten::_slow_conv2d_backward",
)

_FORMULAS: dict[str, Callable[[Signature], int]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::_int_mm", "aten::_scaled_mm", "aten::_scaled_mm_v2"), _mm),
    **dict.fromkeys(("aten::addmm", "aten::addmm_", "aten::_addmm_activation"), _addmm),
    **dict.fromkeys(("aten::baddbmm", "aten::baddbmm_", "aten::addbmm", "aten::addbmm_"), _addmm),
    **dict.fromkeys(("aten::mv", "aten::dot", "aten::vdot"), _vector),
    **dict.fromkeys(("aten::addmv", "aten::addmv_"), _addmv),
    **dict.fromkeys(("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2"), _grouped_mm),
    "aten::linear": _linear,
    **dict.fromkeys(("aten::convolution", "aten::_convolution", "aten::convolution_overrideable"), _convolution),
    **dict.fromkeys(_PLAIN_CONVOLUTIONS, _convolution_plain),
    **dict.fromkeys(_TRANSPOSED_CONVOLUTIONS, _convolution_transposed),
    **dict.fromkeys(_CONVOLUTIONS_BACKWARD, _convolution_backward),
    **dict.fromkeys(_FUSED_ATTENTION, _attention),
    "aten::_scaled_dot_product_attention_math": _attention,
    **dict.fromkeys((f"{name}_backward" for name in _FUSED_ATTENTION), _attention_backward),
    **dict.fromkeys(_LOW_LEVEL_ATTENTION, _flash),
    **dict.fromkeys(_LOW_LEVEL_ATTENTION_BACKWARD, _flash_backward),
    "aten::_cudnn_rnn": _rnn,
    "aten::_cudnn_rnn_backward": _rnn_backward,
}
