"""Matrix products: mm, addmm, bmm, linear and the like.

The time is that of the tiles (`tiles.py`) at the rate of the type (`rates.py`), or of the bytes if those take longer;
close to the ridge between the two, neither fully hides the other (they are added as fourth powers). Rows that do not
start at multiples of 16 bytes (an odd vocabulary) keep the kernels from loading whole lines.

`baddbmm` on a whole matrix is assumed to be the usual idiom of an uninitialised buffer and beta = 0, so the buffer is
not read: numbers that scale tensors are not recorded.
"""

from collections.abc import Callable
from math import prod
from typing import ClassVar, cast

from sandtable.engine.compute.family import Basis, Family, names, slower_of
from sandtable.engine.compute.rates import Rate, best_rate
from sandtable.engine.compute.tiles import Product, grouped_ns, tiled_ns
from sandtable.trace.movement import bytes_moved
from sandtable.trace.signature import Signature, TensorSpec

__all__ = ["Gemm"]

_LINE_BYTES = 16

_WITH_ADDEND = names("addmm _addmm_activation baddbmm addbmm addmv")
_VECTORS = names("mv dot vdot")
_GROUPED = names("_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2")


class Gemm(Family):
    """Products of matrices."""

    name = "gemm"
    operators: ClassVar[frozenset[str]] = (
        _WITH_ADDEND | _VECTORS | _GROUPED | names("mm bmm linear matmul _int_mm _scaled_mm _scaled_mm_v2")
    )

    def work_ns(self, signature: Signature) -> float:
        a, b = operands(signature)
        rate = self._rate(signature)
        table = self.device.efficiency.gemm
        reached = self.product_rate(rate)
        if rate.on_matrix_units:
            reached *= alignment_share((a, b, *signature.outputs[:1]), table.misaligned_share)
        if signature.name in _GROUPED:
            tiles_ns = grouped_ns([product_of(signature)], self.group_throughput(rate, reached, signature))
        else:
            tiles_ns = tiled_ns(product_of(signature), self.tile_throughput(rate, reached))
        return self.streaming.kernel_ns + slower_of(tiles_ns, self._bytes_ns(signature))

    def traffic_bytes(self, signature: Signature) -> int:
        read, written = bytes_moved(signature)
        addend = signature.inputs[0]
        if signature.name.startswith("aten::baddbmm") and addend.shape == signature.outputs[0].shape:
            read -= addend.distinct_bytes
        return read + written

    def basis(self, signature: Signature) -> Basis:
        """Return the basis: fits are to products on matrix units; the ordinary lanes have usual figures."""
        status = self.device.efficiency.gemm.status
        if status == "fitted" and not self._rate(signature).on_matrix_units:
            return "nominal"
        return cast(Basis, status)

    def _rate(self, signature: Signature) -> Rate:
        return best_rate(self.device, operands(signature)[0].dtype, tf32=signature.tf32)

    def _bytes_ns(self, signature: Signature) -> float:
        return self.memory_ns(self.traffic_bytes(signature), self.streaming.elementwise_share)


def operands(signature: Signature) -> tuple[TensorSpec, TensorSpec]:
    """Return the two matrices: the first input may be what the product is added to."""
    start = 1 if signature.name.removesuffix("_") in _WITH_ADDEND else 0
    return signature.inputs[start], signature.inputs[start + 1]


def product_of(signature: Signature) -> Product:
    """Return the shape of the product, by operator."""
    name = signature.name.removesuffix("_")
    shape = _SHAPES.get(name, _flat)
    return shape(*operands(signature))


def alignment_share(specs: tuple[TensorSpec, ...], misaligned_share: float) -> float:
    """Return the remaining speed: all of it for rows at multiples of 16 bytes, less with each halving of that."""
    aligned = min((_alignment_bytes(spec) for spec in specs), default=_LINE_BYTES)
    halvings = {16: 0, 8: 1, 4: 2, 2: 3, 1: 3}[aligned]
    return float(misaligned_share ** (halvings / 3))


def _alignment_bytes(spec: TensorSpec) -> int:
    """Return the largest power of two, up to 16, that divides the bytes from one row (or column) to the next."""
    if len(spec.shape) < 2 or min(spec.shape[-2:]) <= 1:
        return _LINE_BYTES
    pitch = max(spec.strides[-2:]) if spec.strides else spec.shape[-1]
    distance = pitch * spec.element_bytes
    return min(distance & -distance, _LINE_BYTES) or _LINE_BYTES


def _flat(a: TensorSpec, b: TensorSpec) -> Product:
    """Return the shape of (…, m, k) · (…, k, n)."""
    if len(b.shape) < 2:
        return Product(batch=1, m=prod(a.shape[:-1]), n=1, k=a.shape[-1])
    return Product(batch=prod(a.shape[:-2]), m=a.shape[-2], n=b.shape[-1], k=a.shape[-1])


def _linear(x: TensorSpec, weight: TensorSpec) -> Product:
    """Return the shape of (…, in) · (out, in)."""
    return Product(batch=1, m=prod(x.shape[:-1]), n=weight.shape[0], k=x.shape[-1])


def _grouped(a: TensorSpec, b: TensorSpec) -> Product:
    """Divide the rows, the columns or k of a flat product evenly among the groups: shapes show no more."""
    num_groups = max(spec.shape[0] if len(spec.shape) == 3 else 1 for spec in (a, b))
    rows, columns = a.shape[-2], b.shape[-1]
    if len(a.shape) == len(b.shape):
        return Product(batch=num_groups, m=rows, n=columns, k=a.shape[-1])
    if len(a.shape) == 2:
        return Product(batch=num_groups, m=-(-rows // num_groups), n=columns, k=a.shape[-1])
    return Product(batch=num_groups, m=rows, n=-(-columns // num_groups), k=a.shape[-1])


_SHAPES: dict[str, Callable[[TensorSpec, TensorSpec], Product]] = {
    "aten::linear": _linear,
    **dict.fromkeys(_GROUPED, _grouped),
}
