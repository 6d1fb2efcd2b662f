"""The cluster file that a calibration fills: the device as measured, and each host's cable.

A host of the lab is a node with one device, the processor's share it was given. The tables are those of `cluster`'s
files; a number that was not measured says so in its table's status.
"""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from sandtable.lab.calibration import Calibration, OperatorTime
from sandtable.lab.plan import Plan
from sandtable.units import GB, TERA

__all__ = ["machine_text"]

_BITS, _GBIT = 8, 10**9
_FROM = "sandtable calibrate"


def machine_text(calibration: Calibration, *, title: str, plan: Plan | None = None) -> str:
    """The TOML text. Equal neighbours among the hosts are one group of nodes."""
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


def _fabric(plan: Plan) -> dict[str, Any]:
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
    """The `[device]` table: rates are those measured, so that the shares of them are 1."""
    found = calibration.device
    facts = _facts(measured=True)
    matmul = {f"{dtype}_tflops": _short(rate / TERA) for dtype, rate in _matmul_rates(calibration.standard).items()}
    bandwidth = _bandwidth(calibration.standard, "aten::mul", 3)
    return {
        "name": found["name"],
        "vendor": found["vendor"],
        "generation": "cpu" if found["type"] == "cpu" else "generic",
        "properties": _properties(found),
        "memory": {"size_bytes": found["memory_bytes"], **facts},
        "bandwidth": {"memory_gb_per_s": _short(bandwidth / GB), **facts},
        "matmul": {**matmul, **facts},
        "vector": {**matmul, **facts},
        "measured_matmul": {**matmul, **facts},
        "gemm": {"matrix_share": 1.0, "vector_share": 1.0, "tile_us": 0.0, "misaligned_share": 1.0, **facts},
        "streaming": _streaming(calibration, bandwidth),
        "host": _host(calibration),
    }


def _properties(found: Mapping[str, Any]) -> dict[str, Any]:
    is_cpu = found["type"] == "cpu"
    return {
        "architecture": "cpu" if is_cpu else f"sm_{found['capability'][0]}{found['capability'][1]}",
        "capability": found["capability"],
        "num_sms": found["num_sms"],
        "shared_memory_per_block_optin_bytes": found.get("shared_per_block_bytes", 49152),
        "shared_memory_per_sm_bytes": found.get("shared_per_sm_bytes", 49152),
        "l2_bytes": found["l2_bytes"],
        **_facts(measured=True),
    }


def _streaming(calibration: Calibration, bandwidth: float) -> dict[str, Any]:
    """Row-wise and indexed streams as shares of the elementwise one."""
    norm = _bandwidth(calibration.standard, "aten::native_layer_norm", 2)
    index = _bandwidth(calibration.standard, "aten::index_select", 2)
    return {
        "kernel_us": _short(calibration.host_ns["bare_ns"] / 1e3),
        "elementwise_share": 1.0,
        "normalisation_share": _short(min(1.0, norm / bandwidth)),
        "indexing_share": _short(min(1.0, index / bandwidth)),
        **_facts(measured=True),
    }


def _host(calibration: Calibration) -> dict[str, Any]:
    costs = {name: _short(ns / 1e3) for name, ns in calibration.host_ns.items()}
    return {
        "forward_us": costs["forward_ns"],
        "backward_us": costs["backward_ns"],
        "optimizer_us": costs["optimizer_ns"],
        "custom_us": costs["forward_ns"],
        "tensor_us": costs["tensor_ns"],
        "collective_us": costs["forward_ns"],
        "launch_latency_us": 0.0,
        "link_gb_per_s": 1000.0,  # a copy to the device where the tensor already is
        **_facts(measured=True),
    }


def _matmul_rates(rows: Sequence[OperatorTime]) -> dict[str, float]:
    """FLOP/s of the fastest product of each type: 2 m n k over its time."""
    rates: dict[str, float] = {}
    for row in rows:
        data = json.loads(row.signature)
        if data["op"] == "aten::mm":
            dtype, (size, _), *_ = data["in"][0]
            rates[dtype] = max(rates.get(dtype, 0.0), 2 * size**3 / row.ns * 1e9)
    return rates


def _bandwidth(rows: Sequence[OperatorTime], op: str, passes: int) -> float:
    """Bytes a second of the largest tensor that `op` was measured on, each element touched `passes` times."""
    found = []
    for row in rows:
        data = json.loads(row.signature)
        if data["op"] == op:
            num_bytes = 4 * passes * math.prod(data["in"][0][1])
            found.append((num_bytes, num_bytes / row.ns * 1e9))
    return float(max(found)[1])


def _facts(*, measured: bool) -> dict[str, str]:
    return {"source": _FROM, "status": "measured" if measured else "nominal"}


def _short(value: float) -> float:
    """Four figures: more would be noise."""
    return float(f"{value:.4g}")


def _toml(data: Mapping[str, Any], path: str = "") -> str:
    """Plain keys first, then tables, then arrays of tables, as TOML wants them."""
    lines = [f"{key} = {_value(value)}" for key, value in data.items() if not _is_table(value)]
    for key, value in data.items():
        where = f"{path}{key}"
        if isinstance(value, Mapping):
            lines += ["", f"[{where}]", _toml(value, f"{where}.")]
        elif _is_table(value):
            for item in value:
                lines += ["", f"[[{where}]]", _toml(item, f"{where}.")]
    return "\n".join(lines) + ("\n" if not path else "")


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and bool(value) and isinstance(value[0], Mapping))


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
