"""Work: the FLOPs of a step, and how much of the devices' peak they are.

MFU counts what the model asks for; HFU also counts what is computed a second time to save memory (recomputation). Both
are shares of the peak that the matrix units have for the number type in which most of the products are done.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from sandtable.cluster.device import Device
from sandtable.report.needs import Timeline
from sandtable.trace import Kind, Phase, RankView, Trace, flops
from sandtable.units import NS_PER_S

__all__ = ["Efficiency", "measure_efficiency"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """FLOPs of the whole job in one step; `mfu` and `hfu` are None where no peak is known for the number type."""

    model_flops: int
    hardware_flops: int
    dtype: str
    peak_flops_per_s: int
    """Of all devices together."""
    mfu: float | None
    hfu: float | None
    model_flops_per_s_per_device: float


def measure_efficiency(trace: Trace, timeline: Timeline) -> Efficiency:
    """Adds up one step of every class."""
    work: Counter[tuple[str, bool]] = Counter()
    known: dict[int, tuple[int, str]] = {}
    for each in trace.classes:
        for key, count in _work_of(trace.rank(each.representative), known).items():
            work[key] += count * each.size
    hardware = sum(work.values())
    model = sum(count for (_, is_again), count in work.items() if not is_again)
    dtype = _dominant(work)
    peak = _peak(timeline, dtype)
    seconds = timeline.step_ns / NS_PER_S
    possible = peak * seconds
    return Efficiency(
        model_flops=model,
        hardware_flops=hardware,
        dtype=dtype,
        peak_flops_per_s=peak,
        mfu=model / possible if possible else None,
        hfu=hardware / possible if possible else None,
        model_flops_per_s_per_device=model / seconds / trace.world_size if seconds else 0.0,
    )


def peak_of(device: Device, dtype: str) -> int:
    """The dense peak of a device in `dtype`: of its matrix units, or of the ordinary lanes if those cannot."""
    name = "float8" if dtype.startswith("float8") else dtype
    return int(getattr(device.matmul, name, 0) or getattr(device.vector, name, 0))


def _work_of(view: RankView, known: dict[int, tuple[int, str]]) -> Counter[tuple[str, bool]]:
    """FLOPs of the rank's last step by number type, and whether they are recomputation."""
    steps, records = view.step_slices(), view.records
    span = steps[-1] if steps else slice(0, len(records))
    operators = records.kind[span] == Kind.OPERATOR
    refs = records.ref[span][operators].astype(np.int64)
    codes, counts = np.unique(2 * refs + (records.phase[span][operators] == Phase.RECOMPUTE), return_counts=True)
    found: Counter[tuple[str, bool]] = Counter()
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        ref, is_again = divmod(code, 2)
        if ref not in known:
            signature = view.signature(ref)
            known[ref] = flops(signature), _dtype(signature.inputs)
        num_flops, dtype = known[ref]
        if num_flops:
            found[dtype, bool(is_again)] += num_flops * count
    return found


def _dtype(inputs: tuple[object, ...]) -> str:
    """The number type of a product: that of its last input (the first may be a bias or a sum kept in another type)."""
    return str(getattr(inputs[-1], "dtype", "")) if inputs else ""


def _dominant(work: Counter[tuple[str, bool]]) -> str:
    by_dtype: Counter[str] = Counter()
    for (dtype, _), count in work.items():
        by_dtype[dtype] += count
    return by_dtype.most_common(1)[0][0] if by_dtype else ""


def _peak(timeline: Timeline, dtype: str) -> int:
    topology = timeline.topology
    numbers = np.bincount(topology.device_index, minlength=len(topology.devices)).tolist()
    return sum(number * peak_of(device, dtype) for number, device in zip(numbers, topology.devices, strict=True))
