"""Work: the FLOPs of a step, and their share of the devices' peak.

MFU counts the FLOPs of the model; HFU also counts recomputation, which saves memory. Both are shares of the peak of the
matrix units in the number type of most products. Convolutions of float32 count as tf32, which torch uses for them
where the device has it.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from sandtable.cluster import Device, Topology
from sandtable.trace import Kind, Phase, RankView, Signature, Trace, flops

__all__ = ["RunEfficiency", "StepWork", "count_work", "measure_efficiency", "peak_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """FLOPs of the whole job in one step, without and with recomputation, and the number type of most of them."""

    model_flops: int
    hardware_flops: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEfficiency:
    """FLOPs of the whole job in one step; `mfu` and `hfu` are None where no peak is known for the number type."""

    model_flops: int
    hardware_flops: int
    dtype: str
    peak_flops_per_s: int
    """The sum over all devices."""
    mfu: float | None
    hfu: float | None
    model_flops_per_s_per_device: float


def count_work(trace: Trace, *, step: int | None = None) -> StepWork:
    """Add up step number `step` of every class, by default the last; all records of a rank that completed no step."""
    work: Counter[tuple[str, bool]] = Counter()
    known: dict[int, tuple[int, str]] = {}
    for rank_class in trace.classes:
        for key, count in _work_of(trace.rank(rank_class.representative), step, known).items():
            work[key] += count * rank_class.size
    return StepWork(
        model_flops=sum(count for (_, is_again), count in work.items() if not is_again),
        hardware_flops=sum(work.values()),
        dtype=_dominant(work),
    )


def measure_efficiency(work: StepWork, topology: Topology, *, step_seconds: float) -> RunEfficiency:
    """Compare the work of a step with the peak of all devices."""
    has_tf32 = any(device.matmul.tf32 for device in topology.devices)
    dtype = "float32" if work.dtype == "tf32" and not has_tf32 else work.dtype
    peak = _peak(topology, dtype)
    possible = peak * step_seconds
    return RunEfficiency(
        model_flops=work.model_flops,
        hardware_flops=work.hardware_flops,
        dtype=dtype,
        peak_flops_per_s=peak,
        mfu=work.model_flops / possible if possible else None,
        hfu=work.hardware_flops / possible if possible else None,
        model_flops_per_s_per_device=work.model_flops / step_seconds / topology.num_ranks if step_seconds else 0.0,
    )


def peak_of(device: Device, dtype: str) -> int:
    """Return the dense peak of a device in `dtype`: of its matrix units, else of its vector units."""
    name = "float8" if dtype.startswith("float8") else dtype
    peak = int(getattr(device.matmul, name, 0) or getattr(device.vector, name, 0))
    return peak if peak or dtype != "tf32" else peak_of(device, "float32")


def _work_of(view: RankView, step: int | None, known: dict[int, tuple[int, str]]) -> Counter[tuple[str, bool]]:
    """Return the FLOPs of one step of the rank, by number type and whether they are recomputation."""
    records, span = view.records, view.step_slice(step)
    operators = records.kind[span] == Kind.OPERATOR
    refs = records.ref[span][operators].astype(np.int64)
    codes, counts = np.unique(2 * refs + (records.phase[span][operators] == Phase.RECOMPUTE), return_counts=True)
    work: Counter[tuple[str, bool]] = Counter()
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        ref, is_again = divmod(code, 2)
        if ref not in known:
            signature = view.signature(ref)
            known[ref] = flops(signature), _dtype(signature)
        num_flops, dtype = known[ref]
        if num_flops:
            work[dtype, bool(is_again)] += num_flops * count
    return work


def _dtype(signature: Signature) -> str:
    """Return the number type of a product: that of its second input.

    The first may be a bias in another type, and those behind the operands are scales, offsets or random states. A
    described kernel says it, because FP8 is often stored as bytes.
    """
    if signature.work is not None and signature.work.dtype:
        return signature.work.dtype
    dtype = signature.inputs[min(1, len(signature.inputs) - 1)].dtype if signature.inputs else ""
    return "tf32" if dtype == "float32" and (signature.tf32 or "convolution" in signature.op) else dtype


def _dominant(work: Counter[tuple[str, bool]]) -> str:
    by_dtype: Counter[str] = Counter()
    for (dtype, _), count in work.items():
        by_dtype[dtype] += count
    return by_dtype.most_common(1)[0][0] if by_dtype else ""


def _peak(topology: Topology, dtype: str) -> int:
    numbers = np.bincount(topology.device_index, minlength=len(topology.devices)).tolist()
    return sum(number * peak_of(device, dtype) for number, device in zip(numbers, topology.devices, strict=True))
