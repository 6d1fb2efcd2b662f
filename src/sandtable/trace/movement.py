"""Movement: the bytes that one operator reads from and writes to device memory, from its shapes alone.

Every tensor is read once and written once: what an ideal kernel with a perfect cache would move, the lower bound that a
roofline needs. An expanded tensor (stride 0) is as large as the memory behind it; host tensors do not count; views and
bare allocations move nothing; a gather reads the rows it picks, not the whole table. Operators that return nothing
(`_foreach_add_`, `_fused_adamw_`, ...) write the lists that their schema marks as written.
"""

from collections.abc import Sequence

from sandtable.trace.signature import TENSOR, Signature, TensorSpec

__all__ = ["bytes_moved"]


def bytes_moved(signature: Signature) -> tuple[int, int]:
    """Return the bytes (read, written) of one launch."""
    name, inputs, outputs = signature.name, signature.inputs, signature.outputs
    if signature.work is not None:
        read, written = signature.work.bytes_read, signature.work.bytes_written
        return _total(inputs) if read is None else read, _total(outputs) if written is None else written
    if name in _NOTHING:
        return 0, 0
    if name in _FILLS:
        return 0, _total(outputs or (inputs if "_foreach_" in name else inputs[:1]))
    if name in _COPIES:
        return _total(inputs[-1:]), _total(outputs or inputs[:1])
    if name in _GATHERS:
        return _total(inputs[1:]) + _total(outputs), _total(outputs)
    if name in _SCATTERS:
        # As many rows of the first tensor change in place as the last tensor, the values, has.
        return _total(inputs[1:]) + _total(inputs[-1:]), _total(inputs[-1:])
    if name == "aten::_amp_foreach_non_finite_check_and_unscale_":
        return _total(inputs), _total([spec for spec in inputs if spec.shape]) + _total(outputs)
    if not outputs and name.endswith("_"):
        return _lists_moved(signature)
    if not outputs and name in _INTO_LISTS:
        return _total(inputs[:1]), _total(inputs[1:])
    if outputs and _is_out_variant(signature):
        return _total(inputs[: -len(outputs)]), _total(outputs)
    return _total(inputs), _total(outputs)


def _total(specs: Sequence[TensorSpec]) -> int:
    return sum(spec.distinct_bytes for spec in specs if spec.device != "cpu")


def _is_out_variant(signature: Signature) -> bool:
    """Return whether the last inputs are those written: by the overload, or by a tensor after the plain arguments."""
    if signature.op.endswith(".out"):
        return True
    return signature.name == "aten::_chunk_cat" and signature.arguments[-1:] == [TENSOR]


def _lists_moved(signature: Signature) -> tuple[int, int]:
    """Count operators in place on lists: inputs are the lists one after the other, then single tensors."""
    name, inputs = signature.name, signature.inputs
    lists, written = _list_roles(signature)
    has_factor = lists == 1 and signature.arguments.count(TENSOR) == 2  # one tensor that multiplies the whole list
    length = len(inputs) // lists - has_factor
    read = inputs[length:] if name == "aten::_foreach_copy_" else inputs
    return _total(read), sum(_total(inputs[position * length : (position + 1) * length]) for position in written)


def _list_roles(signature: Signature) -> tuple[int, tuple[int, ...]]:
    """Return the number of lists (single tensors that follow are fewer), and which of them are written."""
    name = signature.name
    plain = [argument for argument in signature.arguments if argument != TENSOR]
    flags = [argument for argument in plain if isinstance(argument, bool)]
    if name in ("aten::_fused_adam_", "aten::_fused_adamw_"):
        # parameters, gradients, first moments, second moments, (largest second moments,) steps
        amsgrad = bool(flags) and flags[0]
        return (6, (0, 2, 3, 4)) if amsgrad else (5, (0, 2, 3))
    if name == "aten::_fused_adagrad_":
        return 4, (0, 2)
    if name == "aten::_fused_sgd_":
        # weight_decay and momentum come first; without momentum there are no buffers
        return (3, (0, 2)) if plain[1:2] not in ([0], [None]) else (2, (0,))
    if name in ("aten::_foreach_addcmul_", "aten::_foreach_addcdiv_"):
        return 3, (0,)
    if name == "aten::_foreach_lerp_":
        return (3 if signature.op.endswith(".List") or signature.arguments.count(TENSOR) == 3 else 2), (0,)
    return _num_equal_lists(signature), (0,)


def _num_equal_lists(signature: Signature) -> int:
    """Return 1 or 2: by the overload or the places of tensors, where recorded, and by whether halves are alike."""
    if signature.name == "aten::_foreach_copy_" or signature.op.endswith(".List"):
        return 2
    if "." in signature.op or signature.name not in _FOREACH_BINARY or signature.arguments.count(TENSOR) == 1:
        return 1
    shapes = [spec.shape for spec in signature.inputs]
    half = len(shapes) // 2
    return 2 if half and shapes[:half] == shapes[half:] else 1


def _names(text: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in text.split())


_NOTHING = _names(
    "view _unsafe_view _reshape_alias reshape t transpose transpose_ permute expand select slice narrow squeeze "
    "squeeze_ unsqueeze unsqueeze_ detach detach_ alias as_strided as_strided_ split split_with_sizes unsafe_split "
    "chunk unbind diagonal unfold movedim swapaxes view_as_real view_as_complex lift_fresh set_ resize_ record_stream "
    "empty empty_like empty_strided new_empty new_empty_strided _efficientzerotensor"
)

_FILLS = _names(
    "zeros ones full zeros_like ones_like full_like rand randn randint randperm rand_like randn_like randint_like "
    "new_zeros new_ones new_full arange linspace eye fill_ zero_ uniform_ normal_ random_ exponential_ log_normal_ "
    "geometric_ cauchy_ bernoulli_ _foreach_zero_"
)

_COPIES = _names("copy_ _copy_from")

_GATHERS = _names("embedding index index_select gather take take_along_dim")

_SCATTERS = _names("index_put_ _index_put_impl_ index_add_ index_copy_ scatter_ scatter_add_ scatter_reduce_")

_INTO_LISTS = _names("split_copy split_with_sizes_copy unbind_copy")

_FOREACH_BINARY = _names(
    "_foreach_add_ _foreach_sub_ _foreach_mul_ _foreach_div_ _foreach_pow_ _foreach_maximum_ _foreach_minimum_ "
    "_foreach_clamp_min_ _foreach_clamp_max_"
)
