"""Write a calibration as a cluster file: the device as measured, and each host's link.

A host of the lab is a node with one device, its share of the processor. The tables are those of any cluster file; the
status of a table is "measured" where its numbers were.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from sandtable.errors import LabError
from sandtable.lab.calibration import Calibration, MeasuredDevice, OperatorTime, calibrate
from sandtable.lab.plan import LabPlan
from sandtable.units import GB, TERA

__all__ = ["calibrate_to_file", "machine_text"]

_BITS, _GBIT = 8, 10**9
_FROM = "sandtable calibrate"


def calibrate_to_file(file: Path, signatures: Sequence[str] = (), *, plan: LabPlan | None = None) -> Calibration:
    """Calibrate as `calibrate` does, and write the cluster file; refuse a file that cannot be written beforehand."""
    _check_writable(file)
    calibration = calibrate(signatures, plan=plan)
    text = machine_text(calibration, title=f"Calibrated: {calibration.device.name}", plan=plan)
    file.write_text(text, encoding="utf-8")
    return calibration


def machine_text(calibration: Calibration, *, title: str, plan: LabPlan | None = None) -> str:
    """Return the TOML text. Adjacent hosts with equal links form one group of nodes."""
    heading = {"title": title, "source": _FROM, "status": "measured"}
    if plan is None:
        node = _node_tables(calibration, bandwidth_bytes_per_s=None)
        return _toml({**heading, "gpus_per_node": 1, "num_nodes": 1, **node})
    runs = [(rate, len(list(run))) for rate, run in groupby(plan.hosts, key=lambda host: host.bandwidth_bytes_per_s)]
    fabric = _fabric(plan)
    if len(runs) == 1:
        rate, count = runs[0]
        node = _node_tables(calibration, bandwidth_bytes_per_s=rate)
        return _toml({**heading, "gpus_per_node": 1, "num_nodes": count, **node, **fabric})
    groups = [
        {
            "num_nodes": count,
            "machine": {**heading, "gpus_per_node": 1, **_node_tables(calibration, bandwidth_bytes_per_s=rate)},
        }
        for rate, count in runs
    ]
    return _toml({**heading, **fabric, "groups": groups})


def _node_tables(calibration: Calibration, *, bandwidth_bytes_per_s: float | None) -> dict[str, Any]:
    tables: dict[str, Any] = {"device": _device(calibration)}
    if bandwidth_bytes_per_s:
        tables["nics"] = _nics(calibration, bandwidth_bytes_per_s)
    return tables


def _nics(calibration: Calibration, bandwidth_bytes_per_s: float) -> dict[str, Any]:
    links = calibration.links
    table = {
        "count": 1,
        "gbit_per_s": bandwidth_bytes_per_s * _BITS / _GBIT,
        "latency_us": links.latency_ns / 1e3 if links else 100.0,
        "efficiency": _short(links.message_share if links else 0.9),
        "ring_efficiency": _short(min(1.0, links.all_reduce_share / links.message_share) if links else 1.0),
        "transport": "tcp",
    }
    return {**table, **_facts(measured=links is not None)}


def _fabric(plan: LabPlan) -> dict[str, Any]:
    if not plan.sites:
        return {}
    sites = [
        {
            "name": site.name,
            "num_nodes": sum(host.site == site.name for host in plan.hosts),
            "gbit_per_s": site.bandwidth_bytes_per_s * _BITS / _GBIT,
        }
        for site in plan.sites
    ]
    between = {"gbit_per_s": sites[0]["gbit_per_s"], "latency_ms": 0.0, **_facts(measured=False)}
    return {"fabric": {**_facts(measured=False), "between_sites": between, "sites": sites}}


def _device(calibration: Calibration) -> dict[str, Any]:
    """Return the `[device]` table. Its rates are as measured, so the shares of them are 1."""
    device = calibration.device
    facts = _facts(measured=True)
    matmul = {f"{dtype}_tflops": _short(rate / TERA) for dtype, rate in _matmul_rates(calibration.standard).items()}
    bandwidth = _bandwidth(calibration.standard, "aten::mul", 3)
    return {
        "name": device.name,
        "vendor": device.vendor,
        "generation": "cpu" if device.type == "cpu" else "generic",
        "properties": _properties(device),
        "memory": {"size_bytes": device.memory_bytes, **facts},
        "bandwidth": {"memory_gb_per_s": _short(bandwidth / GB), **facts},
        "matmul": {**matmul, **facts},
        "vector": {**matmul, **facts},
        "measured_matmul": {**matmul, **facts},
        "gemm": {"matrix_share": 1.0, "vector_share": 1.0, "tile_us": 0.0, "misaligned_share": 1.0, **facts},
        "streaming": _streaming(calibration, bandwidth),
        "host": _host(calibration),
    }


def _properties(device: MeasuredDevice) -> dict[str, Any]:
    major, minor = device.capability
    return {
        "architecture": "cpu" if device.type == "cpu" else f"sm_{major}{minor}",
        "capability": [major, minor],
        "num_sms": device.num_sms,
        "shared_memory_per_block_optin_bytes": device.shared_per_block_bytes,
        "shared_memory_per_sm_bytes": device.shared_per_sm_bytes,
        "l2_bytes": device.l2_bytes,
        **_facts(measured=True),
    }


def _streaming(calibration: Calibration, bandwidth: float) -> dict[str, Any]:
    """Return row-wise and indexed bandwidths as shares of the elementwise one."""
    norm = _bandwidth(calibration.standard, "aten::native_layer_norm", 2)
    index = _bandwidth(calibration.standard, "aten::index_select", 2)
    return {
        "kernel_us": _short(calibration.host.bare_ns / 1e3),
        "elementwise_share": 1.0,
        "normalisation_share": _short(min(1.0, norm / bandwidth)),
        "indexing_share": _short(min(1.0, index / bandwidth)),
        **_facts(measured=True),
    }


def _host(calibration: Calibration) -> dict[str, Any]:
    costs = calibration.host
    return {
        "forward_us": _short(costs.forward_ns / 1e3),
        "backward_us": _short(costs.backward_ns / 1e3),
        "optimizer_us": _short(costs.optimizer_ns / 1e3),
        "custom_us": _short(costs.forward_ns / 1e3),
        "compiled_us": _short(costs.forward_ns / 1e3),
        "compiled_call_us": _short(costs.forward_ns / 1e3),
        "tensor_us": _short(costs.tensor_ns / 1e3),
        "collective_us": _short(costs.forward_ns / 1e3),
        "launch_latency_us": 0.0,
        "link_gb_per_s": 1000.0,  # the tensor is already on the device
        **_facts(measured=True),
    }


def _matmul_rates(rows: Sequence[OperatorTime]) -> dict[str, float]:
    """Return FLOP/s of the fastest matrix product per type: 2 m n k over its time."""
    rates: dict[str, float] = {}
    for row in rows:
        data = json.loads(row.signature)
        if data["op"] == "aten::mm":
            dtype, (size, _), *_ = data["in"][0]
            rates[dtype] = max(rates.get(dtype, 0.0), 2 * size**3 / row.ns * 1e9)
    return rates


def _bandwidth(rows: Sequence[OperatorTime], op: str, passes: int) -> float:
    """Return bytes per second of `op` on the largest tensor measured, each element touched `passes` times."""
    rates = []
    for row in rows:
        data = json.loads(row.signature)
        if data["op"] == op:
            num_bytes = 4 * passes * math.prod(data["in"][0][1])
            rates.append((num_bytes, num_bytes / row.ns * 1e9))
    return float(max(rates)[1])


def _facts(*, measured: bool) -> dict[str, str]:
    return {"source": _FROM, "status": "measured" if measured else "nominal"}


def _short(value: float) -> float:
    """Round to four significant figures: more would be noise."""
    return float(f"{value:.4g}")


def _toml(data: Mapping[str, Any], path: str = "") -> str:
    """Write plain keys first, then tables, then arrays of tables, as TOML requires."""
    lines = [f"{key} = {_value(value)}" for key, value in data.items() if not _is_table(value)]
    for key, value in data.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping):
            lines += ["", f"[{name}]", _toml(value, f"{name}.")]
        elif _is_table(value):
            for item in value:
                lines += ["", f"[[{name}]]", _toml(item, f"{name}.")]
    return "\n".join(lines) + ("\n" if not path else "")


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and bool(value) and isinstance(value[0], Mapping))


def _check_writable(file: Path) -> None:
    """Refuse a path that cannot be written, before minutes of measuring."""
    remedy = "choose another path with --out"
    if file.is_dir():
        raise LabError(f"the cluster file must be a file, but {file} is a folder; {remedy}")
    if not file.parent.is_dir():
        raise LabError(f"the cluster file must be in an existing folder, but {file.parent} is none; {remedy}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise LabError(f"the cluster file must be writable, but {file} is not; {remedy}")


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
