"""Kernels that do little with each number they read: their time is their bytes over the bandwidth they reach.

    time = num_kernels · kernel_ns + passes · bytes / (bandwidth · share)

A small kernel is all `kernel_ns`: the launch on the device, one trip to memory and back, the last thread's end. One
that needs a row's sum before it can write the row reads it again (`passes` > 1 where it does not fit on chip).
"""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from sandtable.engine.compute.family import Family, names
from sandtable.trace.signature import Signature, TensorSpec

__all__ = ["Copy", "Elementwise", "Normalisation", "Reduction"]

_CAT_BATCH = 128


class Elementwise(Family):
    """One number out for each number in: activations, sums of tensors, casts, dropout, masks, comparisons."""

    name = "elementwise"
    follows_bytes = True
    operators: ClassVar[frozenset[str]] = names(
        "add sub rsub mul div remainder fmod floor_divide pow neg abs sign sqrt rsqrt reciprocal exp exp2 expm1 "
        "log log2 log10 log1p sin cos tan tanh asin acos atan atan2 sinh cosh sigmoid logit erf erfc erfinv "
        "floor ceil round trunc frac square relu relu6 leaky_relu elu celu selu silu gelu mish softplus hardtanh "
        "hardswish hardsigmoid prelu _prelu_kernel threshold log_sigmoid_forward glu swiglu lerp addcmul addcdiv "
        "clamp clamp_min clamp_max maximum minimum fmax fmin where masked_fill nan_to_num isnan isinf isfinite "
        "eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not "
        "bitwise_xor bitwise_left_shift bitwise_right_shift "
        "native_dropout native_dropout_backward dropout _fused_dropout _masked_scale bernoulli tril triu polar complex "
        "real imag conj sgn hypot copysign heaviside xlogy "
        "relu_backward threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward elu_backward "
        "leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward softplus_backward glu_backward "
        "mish_backward logit_backward _prelu_kernel_backward log_sigmoid_backward "
        "mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward "
        "binary_cross_entropy_with_logits binary_cross_entropy mse_loss smooth_l1_loss huber_loss "
        "upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward "
        "_upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa upsample_bicubic2d "
        "constant_pad_nd reflection_pad2d replication_pad2d roll flip rot90 repeat repeat_interleave "
        "_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward _thnn_fused_gru_cell _amp_update_scale "
        "_fused_rotary_position_embedding quantize_per_tensor dequantize fake_quantize_per_tensor_affine_cachemask"
    )

    def work_ns(self, signature: Signature) -> float:
        share = self.streaming.elementwise_share
        return self.streaming.kernel_ns + self.memory_ns(self.traffic_bytes(signature), share)


class Copy(Family):
    """Copies, concatenations and fills; a copy that turns rows into columns does not read whole lines."""

    name = "copy"
    follows_bytes = True
    operators: ClassVar[frozenset[str]] = names(
        "copy _copy_from clone contiguous _to_copy cat stack _chunk_cat split_copy split_with_sizes_copy unbind_copy "
        "zero fill zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor eye arange "
        "linspace rand randn randint randperm rand_like randn_like randint_like uniform normal random exponential "
        "log_normal geometric cauchy im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle "
        "slice_backward select_backward slice_scatter select_scatter diagonal_copy expand_copy permute_copy view_copy "
        "_pack_padded_sequence"
    )

    def work_ns(self, signature: Signature) -> float:
        share = self.streaming.indexing_share if _turns(signature) else self.streaming.elementwise_share
        num_kernels = max(1, ceil(len(signature.inputs) / _CAT_BATCH))
        return num_kernels * self.streaming.kernel_ns + self.memory_ns(self.traffic_bytes(signature), share)


@dataclass(frozen=True, slots=True)
class _Kernels:
    """How an operator runs: kernels launched, and its bytes relative to the least that must be moved."""

    num_kernels: int = 1
    passes: float = 1.0


_ROWS_AGAIN = _Kernels(2, 1.5)
"""Statistics first, then the rows once more: x is read twice and y written, 3 against 2."""
_GRADIENT_AND_SUMS = _Kernels(3, 5 / 3)
"""dx from dy and x, then the sums for weight and bias from both again: 5 against 3."""

_NORMALISATIONS = {
    "native_layer_norm": _Kernels(),
    "native_layer_norm_backward": _GRADIENT_AND_SUMS,
    "_fused_rms_norm": _Kernels(),
    "_fused_rms_norm_backward": _Kernels(3, 2.0),
    **dict.fromkeys(("native_group_norm", "native_batch_norm", "_native_batch_norm_legit"), _ROWS_AGAIN),
    **dict.fromkeys(("cudnn_batch_norm", "miopen_batch_norm", "batch_norm_stats"), _ROWS_AGAIN),
    **dict.fromkeys(("_batch_norm_with_update", "batch_norm_elemt", "batch_norm_gather_stats_with_counts"), _Kernels()),
    **dict.fromkeys(("native_group_norm_backward", "native_batch_norm_backward"), _GRADIENT_AND_SUMS),
    **dict.fromkeys(("cudnn_batch_norm_backward", "miopen_batch_norm_backward"), _GRADIENT_AND_SUMS),
    **dict.fromkeys(("batch_norm_backward", "batch_norm_backward_reduce", "batch_norm_backward_elemt"), _Kernels()),
    **dict.fromkeys(("_softmax", "_softmax_backward_data", "_masked_softmax", "_masked_softmax_backward"), _Kernels()),
    **dict.fromkeys(("_log_softmax", "_log_softmax_backward_data"), _Kernels()),
    **dict.fromkeys(("max_pool2d_with_indices", "avg_pool2d", "avg_pool2d_backward", "avg_pool3d"), _Kernels()),
    **dict.fromkeys(("max_pool3d_with_indices", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward"), _Kernels()),
    **dict.fromkeys(
        ("adaptive_max_pool2d", "adaptive_max_pool2d_backward", "max_pool2d_with_indices_backward"), _Kernels()
    ),
}

_ROW_ON_CHIP_BYTES = 32 * 1024
"""A longer row of a softmax does not stay in registers and shared memory between its passes."""


_LONG_NORM_BYTES = 10 * 1024
_LONG_NORM_PASSES = 1.3
"""torch's RMS norm reads longer rows twice, partly from the cache (cuDNN's tables for H200: 5,120 against 6,144)."""

_ROW_NS = {
    **dict.fromkeys(("aten::native_layer_norm", "aten::_fused_rms_norm"), 100.0),
    **dict.fromkeys(("aten::native_layer_norm_backward", "aten::_fused_rms_norm_backward"), 400.0),
}
"""Of one row on one multiprocessor: 16,384 rows of 128 take 13 us forward and 51 backward on H200 (cuDNN's tables)."""


class Normalisation(Family):
    """Operators that reduce rows on the way: norms, softmax, pooling."""

    name = "normalisation"
    follows_bytes = True
    operators: ClassVar[frozenset[str]] = frozenset(f"aten::{name}" for name in _NORMALISATIONS)

    def work_ns(self, signature: Signature) -> float:
        if _has_known_statistics(signature):
            moved_ns = self.memory_ns(self.traffic_bytes(signature), self.streaming.elementwise_share)
            return self.streaming.kernel_ns + moved_ns
        kernels = _NORMALISATIONS[signature.name.removeprefix("aten::").removesuffix("_")]
        passes = kernels.passes * _passes_of_long_rows(signature)
        moved_ns = self.memory_ns(self.traffic_bytes(signature) * passes, self.streaming.normalisation_share)
        return kernels.num_kernels * self.streaming.kernel_ns + max(moved_ns, self._rows_ns(signature))

    def _rows_ns(self, signature: Signature) -> float:
        """Return the least time of torch's norms, which give each row a block of its own however short it is."""
        name = signature.name
        if name not in _ROW_NS or not signature.inputs[0].shape:
            return 0.0
        num_rows = signature.inputs[0].num_elements // max(1, signature.inputs[0].shape[-1])
        return num_rows / self.device.num_sms * _ROW_NS[name]

    def traffic_bytes(self, signature: Signature) -> int:
        """Return the bytes; the gradient of a pooling uses the shape of its input, not its content."""
        moved = super().traffic_bytes(signature)
        if "_pool" in signature.name and signature.name.endswith("_backward") and len(signature.inputs) > 1:
            moved -= signature.inputs[1].distinct_bytes
        return moved


class Reduction(Family):
    """Many numbers to few: sums, means, norms, maxima, prefix sums."""

    name = "reduction"
    follows_bytes = True
    operators: ClassVar[frozenset[str]] = names(
        "sum mean prod amax amin max min argmax argmin any all norm linalg_vector_norm var std var_mean std_mean "
        "logsumexp cumsum cumprod logcumsumexp cummax cummin nansum count_nonzero _cdist_forward aminmax median dist "
        "equal is_nonzero l1_loss trace bincount histc"
    )

    def work_ns(self, signature: Signature) -> float:
        share = self.streaming.normalisation_share
        return self.streaming.kernel_ns + self.memory_ns(self.traffic_bytes(signature), share)


def _has_known_statistics(signature: Signature) -> bool:
    """Return whether a batch norm reads its statistics, as in evaluation: one product and one sum per number remain."""
    flags = (argument for argument in signature.arguments if isinstance(argument, bool))
    return signature.name.endswith("_batch_norm") and next(flags, True) is False


def _passes_of_long_rows(signature: Signature) -> float:
    """Return how much more is read because a row does not stay on chip."""
    if not signature.inputs[0].shape:
        return 1.0
    row_bytes = signature.inputs[0].shape[-1] * signature.inputs[0].element_bytes
    if "softmax" in signature.name:
        return 1.5 if row_bytes > _ROW_ON_CHIP_BYTES else 1.0
    if "_rms_norm" in signature.name:
        return _LONG_NORM_PASSES if row_bytes > _LONG_NORM_BYTES else 1.0
    return 1.0


def _turns(signature: Signature) -> bool:
    """Return whether neighbours in memory are not neighbours in the copy."""
    if not signature.name.startswith("aten::copy") or not signature.inputs or not signature.outputs:
        return False
    source, target = _fastest_dim(signature.inputs[-1]), _fastest_dim(signature.outputs[0])
    return source is not None and target is not None and source != target


def _fastest_dim(spec: TensorSpec) -> int | None:
    """Return the dimension of consecutive addresses; None for a tensor of one line."""
    dims = [dim for dim, size in enumerate(spec.shape) if size > 1]
    if len(dims) < 2 or not spec.strides:
        return None
    return min(dims, key=lambda dim: spec.strides[dim] or spec.num_elements)
