"""Convolutions as implicit matrix products.

With N pictures, C channels in, K out, filters of R x S, and output (gradient: input) of P x Q (H x W) positions:

    forward              (N·P·Q, C·R·S) · (C·R·S, K)
    gradient of input    (N·H·W, K·R·S / stride²) · (K·R·S / stride², C)
    gradient of weight   (K, N·P·Q) · (N·P·Q, C·R·S)

each tiled like any product. float32 runs as tf32 where the chip has it (torch's default for convolutions), else on the
ordinary lanes, where 3 x 3 filters of stride 1 use algorithms with fewer multiplications (Lavin and Gray 2015), so that
they may be faster than their FLOPs and the peak suggest.

A depthwise convolution has a filter for each channel and is no product: a thread loads two numbers for each of the R·S
multiplications of its output, on ordinary lanes, and that time and the time of the bytes add up.
"""

from collections.abc import Iterator
from math import prod
from typing import ClassVar, cast

from sandtable.engine.compute.family import Basis, Family, names, slower_of
from sandtable.engine.compute.rates import Rate, best_rate
from sandtable.engine.compute.tiles import Product, tiled_ns
from sandtable.trace.signature import Signature, TensorSpec

__all__ = ["Convolution"]

_BACKWARD = names("convolution_backward convolution_backward_overrideable _slow_conv2d_backward")
_TRANSPOSED = names("cudnn_convolution_transpose slow_conv_transpose2d slow_conv_transpose3d")
_MIN_WINOGRAD_CHANNELS = 16

_DEPTHWISE_SHARE = 0.11
"""Of the ordinary lanes' rate: what large filters reach on an RTX 2080 Ti (RepLKNet, arXiv 2203.06717, table 1, from
memory). With it, ConvNeXt and MobileNet on A100 take their published times (`bench/compiled.py`)."""


class Convolution(Family):
    """Convolutions and their gradients."""

    name = "convolution"
    operators: ClassVar[frozenset[str]] = (
        _BACKWARD
        | _TRANSPOSED
        | names(
            "convolution _convolution convolution_overrideable cudnn_convolution cudnn_convolution_relu "
            "cudnn_convolution_add_relu miopen_convolution mkldnn_convolution _slow_conv2d_forward slow_conv3d_forward "
            "slow_conv_dilated2d slow_conv_dilated3d _conv_depthwise2d conv_depthwise3d"
        )
    )

    def work_ns(self, signature: Signature) -> float:
        bytes_ns = self.memory_ns(self.traffic_bytes(signature), self.streaming.elementwise_share)
        if _is_depthwise(signature):
            rate = best_rate(self.device, "float32").peak * _DEPTHWISE_SHARE
            products = list(_products(signature))
            taps_ns = sum(product.flops for product in products) / rate * 1e9
            return len(products) * self.streaming.kernel_ns + taps_ns + bytes_ns
        return self._product_ns(signature, bytes_ns)

    def _product_ns(self, signature: Signature, bytes_ns: float) -> float:
        table = self.device.efficiency.convolution
        rate = self._rate(signature)
        reached = rate.reachable(matrix_share=table.matrix_share, vector_share=table.vector_share)
        if rate.on_matrix_units and not _channels_last(_tensors(signature)[0]):
            reached *= table.nchw_share
        if not rate.on_matrix_units and _suits_winograd(signature):
            reached *= table.winograd_gain
        if signature.name in _BACKWARD:
            reached *= table.backward_share
        products = list(_products(signature))
        total_ns = sum(tiled_ns(product, self.tile_throughput(rate, reached)) for product in products)
        return len(products) * self.streaming.kernel_ns + slower_of(total_ns, bytes_ns)

    def basis(self, signature: Signature) -> Basis:
        """Return the basis: fits are to float32 products on the ordinary lanes."""
        status = self.device.efficiency.convolution.status
        if status == "fitted" and (_is_depthwise(signature) or self._rate(signature).on_matrix_units):
            return "nominal"
        return cast(Basis, status)

    def _rate(self, signature: Signature) -> Rate:
        return best_rate(self.device, signature.inputs[0].dtype, tf32=True)


def _tensors(signature: Signature) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Return input, weight and output of the forward pass."""
    if signature.name in _BACKWARD:
        grad_output, x, weight = signature.inputs[:3]
        return x, weight, grad_output
    return signature.inputs[0], signature.inputs[1], signature.outputs[0]


def _products(signature: Signature) -> Iterator[Product]:
    """Yield the matrix products. A transposed convolution is the gradient of a plain one."""
    x, weight, output = _tensors(signature)
    if _is_transposed(signature):
        x, output = output, x
    groups = max(1, x.shape[1] // max(1, weight.shape[1]))
    filters, window = weight.shape[0] // groups, prod(weight.shape[1:])
    positions = output.shape[0] * prod(output.shape[2:])
    forward = Product(batch=groups, m=positions, n=filters, k=window)
    of_weight = Product(batch=groups, m=filters, n=window, k=positions)
    x_positions, channels = x.shape[0] * prod(x.shape[2:]), weight.shape[1]
    depth = -(-forward.flops // max(1, 2 * groups * x_positions * channels))
    of_input = Product(batch=groups, m=x_positions, n=channels, k=depth)
    if signature.name not in _BACKWARD:
        yield of_input if _is_transposed(signature) else forward
        return
    wanted = _output_mask(signature)
    if wanted[0]:
        yield forward if _is_transposed(signature) else of_input
    if wanted[1]:
        yield of_weight


def _is_transposed(signature: Signature) -> bool:
    if signature.name in _TRANSPOSED:
        return True
    return next((argument for argument in signature.arguments if isinstance(argument, bool)), False)


def _is_depthwise(signature: Signature) -> bool:
    """Return whether each channel has filters of its own."""
    x, weight, output = _tensors(signature)
    return weight.shape[1] == 1 and (output if _is_transposed(signature) else x).shape[1] > 1


def _output_mask(signature: Signature) -> list[bool]:
    for argument in reversed(signature.arguments):
        if isinstance(argument, list) and len(argument) == 3 and all(isinstance(item, bool) for item in argument):
            return argument
    return [True, True, True]


def _channels_last(spec: TensorSpec) -> bool:
    return len(spec.strides) > 2 and spec.strides[1] == 1


def _suits_winograd(signature: Signature) -> bool:
    """Return whether the filter is 3 x 3 over neighbouring positions, with enough channels for a matrix product."""
    x, weight, output = _tensors(signature)
    if weight.shape[2:] != (3, 3) or weight.shape[1] < _MIN_WINOGRAD_CHANNELS:
        return False
    return all(abs(a - b) <= 2 for a, b in zip(x.shape[2:], output.shape[2:], strict=True))
