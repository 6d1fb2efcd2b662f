"""Families without much of a formula: copies over the host link, recurrent layers, free and unknown work."""

from typing import ClassVar

from sandtable.cluster.device import Device
from sandtable.engine.compute.family import Basis, Family, names, slower_of
from sandtable.engine.compute.rates import best_rate
from sandtable.trace.flops import flops
from sandtable.trace.signature import Signature

__all__ = ["Free", "HostCopy", "Recurrent", "Unknown"]


class HostCopy(Family):
    """Copies between host and device memory, at the rate of the link between them (PCIe).

    Pinned and pageable memory are not distinguished: both get the link's rate.
    """

    name = "transfer"
    follows_bytes = True
    operators: ClassVar[frozenset[str]] = names("host_to_device device_to_host device_to_device", library="copy")

    def __init__(self, device: Device, *, link_bytes_per_s: float) -> None:
        super().__init__(device)
        self.link_bytes_per_s = link_bytes_per_s

    def work_ns(self, signature: Signature) -> float:
        return self.streaming.kernel_ns + self.traffic_bytes(signature) * 1e9 / self.link_bytes_per_s

    def traffic_bytes(self, signature: Signature) -> int:
        specs = signature.outputs or signature.inputs[-1:]
        return sum(spec.distinct_bytes for spec in specs)

    def basis(self, signature: Signature) -> Basis:
        return "nominal"


class Recurrent(Family):
    """cuDNN's recurrent layers: one product per time step, too small to fill the device, one after the other."""

    name = "recurrent"
    operators: ClassVar[frozenset[str]] = names("_cudnn_rnn _cudnn_rnn_backward miopen_rnn miopen_rnn_backward")
    _SHARE = 0.4
    """The share of a large product's speed."""

    def work_ns(self, signature: Signature) -> float:
        rate = best_rate(self.device, signature.inputs[0].dtype)
        reached = self.product_rate(rate) * self._SHARE
        num_steps = signature.inputs[0].shape[0] if signature.inputs[0].shape else 1
        bytes_ns = self.memory_ns(self.traffic_bytes(signature), self.streaming.elementwise_share)
        return num_steps * self.streaming.kernel_ns + slower_of(flops(signature) * 1e9 / reached, bytes_ns)

    def basis(self, signature: Signature) -> Basis:
        return "nominal"


class Free(Family):
    """Views and bare allocations: the device does nothing."""

    name = "none"
    operators: ClassVar[frozenset[str]] = names(
        "view _unsafe_view _reshape_alias reshape t transpose permute expand select slice narrow squeeze unsqueeze "
        "detach alias as_strided split split_with_sizes unsafe_split chunk unbind diagonal unfold movedim swapaxes "
        "view_as_real view_as_complex lift_fresh set resize record_stream empty empty_like empty_strided new_empty "
        "new_empty_strided _efficientzerotensor"
    )

    def work_ns(self, signature: Signature) -> float:
        return 0.0

    def basis(self, signature: Signature) -> Basis:
        return "nominal"


class Unknown(Family):
    """Operators without a family, such as kernels of other people's extensions: bound by their tensors' bytes."""

    name = "unknown"
    follows_bytes = True
    operators: ClassVar[frozenset[str]] = frozenset()

    def work_ns(self, signature: Signature) -> float:
        return self.streaming.kernel_ns + self.memory_ns(
            self.traffic_bytes(signature), self.streaming.elementwise_share
        )

    def basis(self, signature: Signature) -> Basis:
        return "nominal"
