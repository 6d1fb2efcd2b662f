"""Calibration: measure how fast this machine computes and what its links carry, for a cluster file.

Two probes run as separate processes. One times operators, of a trace or of a standard set, on all hosts of the lab at
once, since hosts share memory and caches. The other sends and reduces with gloo over the lab's links.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from sandtable.errors import LabError
from sandtable.lab.lab import Lab
from sandtable.lab.plan import LabPlan

__all__ = ["Calibration", "HostCosts", "LinkRates", "MeasuredDevice", "OperatorTime", "calibrate"]

_PROBES = "sandtable.lab.probes"
_TIMEOUT_S = 1200.0
_LARGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """An operator's signature, as stored in a trace, and its time here."""

    signature: str
    ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """What gloo achieves: the share of the link's rate in large messages and all-reduces, and a small message's time.

    `core_ns_per_byte` is the processor time per byte sent and received in an all-reduce.
    """

    message_share: float
    all_reduce_share: float
    latency_ns: float
    core_ns_per_byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDevice:
    """The device, as its driver or the operating system describes it.

    `share` is the number of processors the probe really got; 1 on a GPU.
    """

    type: Literal["cpu", "cuda"]
    name: str
    vendor: str
    capability: tuple[int, int]
    num_sms: int
    memory_bytes: int
    l2_bytes: int
    threads: int
    share: float
    shared_per_block_bytes: int = 49152
    shared_per_sm_bytes: int = 49152


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Nanoseconds of Python and bookkeeping per operator, by phase; `bare_ns` is a small operator itself."""

    forward_ns: float
    backward_ns: float
    optimizer_ns: float
    tensor_ns: float
    bare_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Everything measured: the requested `operators`, and the `standard` set that the device's rates come from.

    `skipped` counts the requested operators that cannot run here, by name.
    """

    device: MeasuredDevice
    host: HostCosts
    operators: tuple[OperatorTime, ...]
    standard: tuple[OperatorTime, ...]
    skipped: Mapping[str, int]
    links: LinkRates | None


def calibrate(signatures: Sequence[str] = (), *, plan: LabPlan | None = None) -> Calibration:
    """Measure this machine, or with a plan the hosts and links of a lab."""
    with tempfile.TemporaryDirectory(prefix="sandtable-calibrate-") as directory:
        wanted, measured = Path(directory) / "wanted.json", Path(directory) / "measured.json"
        wanted.write_text(json.dumps(list(signatures)), encoding="utf-8")
        if plan is None:
            _run_here([sys.executable, *_probe("operators"), str(wanted), str(measured)])
            return _merge([_load(measured)], None)
        with Lab(plan) as lab:
            # One file per host: they share the disk.
            line = 'file=$1.$NODE_RANK; shift; exec "$@" "$file"'
            _run(lab, ["sh", "-c", line, "sh", str(measured), sys.executable, *_probe("operators"), str(wanted)])
            results = [_load(Path(f"{measured}.{index}")) for index in range(len(plan.hosts))]
            links = _measure_links(lab, measured) if len(plan.hosts) > 1 else None
        return _merge(results, links)


def _measure_links(lab: Lab, output: Path) -> LinkRates | None:
    """Measure the links with gloo; None if some link is unlimited."""
    rates = [host.bandwidth_bytes_per_s for host in lab.plan.hosts]
    if not all(rates):
        return None
    _run(lab, [sys.executable, "-m", "torch.distributed.run", *_probe("links"), str(output)])
    data = _load(output)
    # Each link carries 2 (n - 1) / n of the message.
    fastest_s = 2 * (len(rates) - 1) / len(rates) / min(rates)
    shares = [size * fastest_s / seconds for size, seconds in data["all_reduce"] if size >= _LARGE_BYTES]
    # Other work on the machine easily delays a message between two hosts: the fastest pair shows the link.
    return LinkRates(
        message_share=max(_message_shares(data["ping"], rates)),
        all_reduce_share=min(1.0, median(shares)),
        latency_ns=1e9 * min(seconds for _, size, seconds in data["ping"] if size <= 4),
        core_ns_per_byte=1e9 * data["core_seconds_per_byte"],
    )


def _message_shares(pings: Sequence[Sequence[float]], rates: Sequence[float]) -> list[float]:
    """Return the share of the link between the first host and each other one, from the two largest messages.

    Their difference excludes the fixed cost of a message and the burst that an idle link lets through.
    """
    shares = []
    for peer in range(1, len(rates)):
        (small, small_s), (large, large_s) = [(size, s) for to, size, s in pings if to == peer][-2:]
        fastest_s = (large - small) / min(rates[0], rates[peer])
        shares.append(fastest_s / max(large_s - small_s, fastest_s))
    return shares


def _merge(results: Sequence[Mapping[str, Any]], links: LinkRates | None) -> Calibration:
    """Take the median over the hosts."""
    first = results[0]
    device = {**first["device"], "share": median(result["device"]["share"] for result in results)}
    device["capability"] = tuple(device["capability"])
    if device["type"] == "cpu":
        device["memory_bytes"] //= len(results)
    return Calibration(
        device=MeasuredDevice(**device),
        host=HostCosts(**{name: median(result["host"][name] for result in results) for name in first["host"]}),
        operators=_median_rows([result["rows"] for result in results]),
        standard=_median_rows([result["standard"] for result in results]),
        skipped=first["skipped"],
        links=links,
    )


def _median_rows(tables: Sequence[Sequence[Sequence[Any]]]) -> tuple[OperatorTime, ...]:
    times: dict[str, list[float]] = {}
    for table in tables:
        for signature, ns in table:
            times.setdefault(signature, []).append(ns)
    return tuple(OperatorTime(signature=text, ns=median(samples)) for text, samples in times.items())


def _probe(name: str) -> list[str]:
    return ["-m", f"{_PROBES}.{name}"]


def _run(lab: Lab, command: Sequence[str]) -> None:
    lines: list[str] = []
    result = lab.run(command, show=lambda host, line: lines.append(f"{host}: {line}"), timeout_s=_TIMEOUT_S)
    if result.exit_code:
        raise _failed(command, "\n".join(lines[-20:]))


def _run_here(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode:
        raise _failed(command, done.stderr[-2000:])


def _failed(command: Sequence[str], output: str) -> LabError:
    probe = next((word for word in command if word.startswith(_PROBES)), command[0])
    return LabError(f"the probe {probe} must run to its end, but it failed; fix what it printed:\n{output}")


def _load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
