"""Described kernels: their record carries their work (`trace.work`), and their family sets the share of the peak.

    time = num_kernels · kernel_ns + slower of (products, bytes)

Products that are listed share one launch: the tiles of all groups are dealt out together, and a group with few rows
still fills whole tiles. Operations without shapes run at the family's share of the type's peak. A kernel that keeps one
program per multiprocessor, each with its rows one after the other, may be limited by the time of a row.
"""

from math import ceil
from typing import ClassVar

from sandtable.cluster.device import Device
from sandtable.engine.compute.attention import pass_of
from sandtable.engine.compute.family import SUSTAINED, Basis, Conditions, Family, slower_of
from sandtable.engine.compute.rates import Rate, best_rate
from sandtable.engine.compute.tiles import Product, grouped_ns, tiled_ns
from sandtable.trace.signature import Signature
from sandtable.trace.work import Work, WorkFamily

__all__ = ["Described"]


class Described(Family):
    """Kernels that say which family's efficiency they have."""

    operators: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, device: Device, family: WorkFamily, conditions: Conditions = SUSTAINED) -> None:
        super().__init__(device, conditions)
        self.name = family  # type: ignore[misc]

    def work_ns(self, signature: Signature) -> float:
        work = _work(signature)
        bytes_ns = self.memory_ns(self.traffic_bytes(signature), self._bandwidth_share())
        rows_ns = ceil(work.rows / self.device.num_sms) * work.row_ns
        return work.num_kernels * self.streaming.kernel_ns + slower_of(
            slower_of(self._products_ns(signature), bytes_ns), rows_ns
        )

    def basis(self, signature: Signature) -> Basis:
        """Return the basis of the description: the kernel is as fast as others of its family only by assumption."""
        return _work(signature).basis

    def _products_ns(self, signature: Signature) -> float:
        work = _work(signature)
        if not work.total_flops:
            return 0.0
        rate = best_rate(self.device, _dtype(signature))
        if work.products:
            products = [Product(batch=batch, m=m, n=n, k=k) for batch, m, n, k in work.products]
            reached = self.product_rate(rate)
            if len(products) == 1:
                return tiled_ns(products[0], self.tile_throughput(rate, reached))
            return grouped_ns(products, self.group_throughput(rate, reached, signature))
        return work.flops * 1e9 / self._reached(rate, signature.name)

    def _reached(self, rate: Rate, name: str) -> float:
        """Return the operations per second of large kernels of the family; the name tells which attention it is."""
        if self.name == "attention" and rate.on_matrix_units:
            table = self.device.efficiency.attention
            gain = table.burst_gain if self.conditions.burst else 1.0
            return rate.peak * pass_of(table, name).share * gain
        return self.product_rate(rate)

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
