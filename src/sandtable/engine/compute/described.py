"""Described kernels: their record carries their work (`trace.work`), and their family sets the share of the peak.

    time = num_kernels · kernel_ns + slower of (products, bytes)

Products that are listed are tiled like any other, one after the other in one launch (a grouped product is dealt out
group by group). Operations without shapes run at the family's share of the type's peak.
"""

from typing import ClassVar

from sandtable.cluster.device import Device
from sandtable.engine.compute.family import Basis, Family, slower_of
from sandtable.engine.compute.rates import Rate, best_rate
from sandtable.engine.compute.tiles import Product, TileThroughput, tiled_ns
from sandtable.trace.signature import Signature
from sandtable.trace.work import Work, WorkFamily

__all__ = ["Described"]


class Described(Family):
    """Kernels that say which family's efficiency they have."""

    operators: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, device: Device, family: WorkFamily) -> None:
        super().__init__(device)
        self.name = family  # type: ignore[misc]

    def work_ns(self, signature: Signature) -> float:
        work = _work(signature)
        bytes_ns = self.memory_ns(self.traffic_bytes(signature), self._bandwidth_share())
        return work.num_kernels * self.streaming.kernel_ns + slower_of(self._products_ns(signature), bytes_ns)

    def basis(self, signature: Signature) -> Basis:
        """Return the basis of the description: the kernel is as fast as others of its family only by assumption."""
        return _work(signature).basis

    def _products_ns(self, signature: Signature) -> float:
        work = _work(signature)
        if not work.total_flops:
            return 0.0
        rate = best_rate(self.device, _dtype(signature))
        if work.products:
            products = (Product(batch=batch, m=m, n=n, k=k) for batch, m, n, k in work.products)
            return sum(tiled_ns(product, self._throughput(rate)) for product in products)
        return work.flops * 1e9 / self._reached(rate)

    def _reached(self, rate: Rate) -> float:
        """Return the operations per second of large kernels of the family."""
        table = self.device.efficiency
        if self.name == "attention" and rate.on_matrix_units:
            return rate.peak * table.attention.flash_forward_share
        return rate.reachable(matrix_share=table.gemm.matrix_share, vector_share=table.gemm.vector_share)

    def _throughput(self, rate: Rate) -> TileThroughput:
        return TileThroughput(
            num_sms=self.device.num_sms,
            rate=self._reached(rate),
            on_matrix_units=rate.on_matrix_units,
            tile_ns=self.device.efficiency.gemm.tile_ns,
            kernel_ns=self.streaming.kernel_ns,
            bytes_per_ns=1 / self.memory_ns(1, self.streaming.elementwise_share),
        )

    def _bandwidth_share(self) -> float:
        if self.name in ("normalisation", "reduction"):
            return float(self.streaming.normalisation_share)
        return float(self.streaming.indexing_share if self.name == "indexing" else self.streaming.elementwise_share)


def _work(signature: Signature) -> Work:
    assert signature.work is not None
    return signature.work


def _dtype(signature: Signature) -> str:
    """Return the type of the arithmetic, by default that of the first tensor."""
    tensors = (*signature.inputs, *signature.outputs)
    return _work(signature).dtype or (tensors[0].dtype if tensors else "float32")
