"""The cost model of one device: from an operator's signature to nanoseconds, on the device and on the host."""

from typing import get_args

from sandtable.cluster.device import Device
from sandtable.engine.compute.attention import Attention
from sandtable.engine.compute.convolution import Convolution
from sandtable.engine.compute.described import Described
from sandtable.engine.compute.embedding_tables import EmbeddingTables
from sandtable.engine.compute.family import SUSTAINED, Conditions, Cost, Family
from sandtable.engine.compute.gemm import Gemm
from sandtable.engine.compute.host_work import USUAL_HOST, HostRates, HostWork
from sandtable.engine.compute.indexing import Indexing
from sandtable.engine.compute.lists import Lists, is_list_operator
from sandtable.engine.compute.measured import MeasuredTable
from sandtable.engine.compute.other import Free, HostCopy, Recurrent, Unknown
from sandtable.engine.compute.shards import ShardCopies
from sandtable.engine.compute.streaming import Copy, Elementwise, Normalisation, Reduction
from sandtable.trace.flops import flops
from sandtable.trace.kinds import LaunchKind, Phase
from sandtable.trace.signature import Signature
from sandtable.trace.work import WorkFamily

__all__ = ["CostModel"]


class CostModel:
    """What operators cost on `device`; times of `table` take precedence over the formulas.

    `host_link_bytes_per_s` is the rate between host and device memory, by default that of the device's generation, and
    `host_rates` are those of work that the host does itself.
    `conditions` are those of a long run; those of a kernel benchmark serve to compare with one.
    """

    def __init__(
        self,
        device: Device,
        table: MeasuredTable | None = None,
        *,
        host_link_bytes_per_s: float | None = None,
        host_rates: HostRates = USUAL_HOST,
        conditions: Conditions = SUSTAINED,
    ) -> None:
        host = device.efficiency.host
        self.device = device
        self.table = table or MeasuredTable()
        self.call_host_ns: float = host.collective_ns
        self.launch_latency_ns: float = host.launch_latency_ns
        self.is_synchronous: bool = device.vendor == "cpu"
        self._lists = Lists(device, conditions)
        self._unknown = Unknown(device, conditions)
        self._shards = ShardCopies(device, conditions)
        self._host_work = HostWork(device, host_rates, conditions)
        self._described = {family: Described(device, family, conditions) for family in get_args(WorkFamily)}
        link = host_link_bytes_per_s or host.link_bytes_per_s
        families = (
            *(kind(device, conditions) for kind in (Gemm, Attention, Convolution, Elementwise, Normalisation)),
            *(kind(device, conditions) for kind in (Reduction, Copy, Indexing, EmbeddingTables, Recurrent, Free)),
            HostCopy(device, link_bytes_per_s=link),
            self._shards,
        )
        self._by_operator: dict[str, Family] = {name: family for family in families for name in family.operators}

    def cost(self, signature: Signature) -> Cost:
        """Return what one launch costs a device that does nothing else."""
        family = self.family_of(signature)
        measured_ns = self.table.find(signature)
        if measured_ns is None and family.follows_bytes:
            measured_ns = self.table.interpolate(signature)
        return Cost(
            work_ns=family.work_ns(signature) if measured_ns is None else measured_ns,
            family=family.name,
            basis=family.basis(signature) if measured_ns is None else "measured",
            flops=flops(signature),
            bytes=family.traffic_bytes(signature),
        )

    def host_ns(self, signature: Signature, phase: Phase) -> float:
        """Return what issuing it costs the host, including the Python and the views around it."""
        host = self.device.efficiency.host
        if signature.work is not None and signature.work.place != "device":
            return self._host_work.host_ns(signature)
        if not signature.op.startswith(("aten::", "copy::")):
            return host.custom_ns + (
                self._shards.host_ns(signature) if signature.name in ShardCopies.operators else 0.0
            )
        per_operator = {Phase.BACKWARD: host.backward_ns, Phase.OPTIMIZER: host.optimizer_ns}.get(
            phase, host.forward_ns
        )
        if is_list_operator(signature.name):
            return per_operator + host.tensor_ns * len(signature.inputs)
        return per_operator

    def launch_ns(self, kind: LaunchKind) -> float:
        """Return what a launch that does not go through torch's dispatcher costs the host; 0 for one that does.

        A CUDA graph of any size is one launch, so a kernel of it costs the host nothing.
        """
        host = self.device.efficiency.host
        return {LaunchKind.COMPILED: host.compiled_ns, LaunchKind.CALL: host.compiled_call_ns}.get(kind, 0.0)

    def family_of(self, signature: Signature) -> Family:
        """Return the family that costs this operator."""
        if signature.work is not None and signature.work.place != "device":
            return self._host_work
        if signature.work is not None:
            return self._described[signature.work.family]
        name = signature.name
        if is_list_operator(name):
            return self._lists
        return self._by_operator.get(name) or self._by_operator.get(name.removesuffix("_")) or self._unknown
