"""Calibration: how fast this machine computes and what its links carry, as numbers a cluster file can hold.

Two probes are run in processes of their own. One runs operators, of a trace or of a standard set, on every host of the
lab at the same time, since hosts share memory and caches; the other sends and reduces with gloo over the lab's links.
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
from typing import Any

from sandtable.errors import LabError
from sandtable.lab.lab import Lab
from sandtable.lab.plan import Plan

__all__ = ["Calibration", "LinkRates", "OperatorTime", "calibrate"]

_PROBES = "sandtable.lab.probes"
_TIMEOUT_S = 1200.0
_LARGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """A signature as a trace holds it, and the nanoseconds it took here."""

    signature: str
    ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """What gloo gets: shares of the cable's rate in a large message and a large all-reduce; a small message's time.

    `core_ns_per_byte` is processor time for each byte sent and received in an all-reduce.
    """

    message_share: float
    all_reduce_share: float
    latency_ns: float
    core_ns_per_byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All that was measured. `operators` were asked for, `standard` is the set that device rates are read off."""

    device: Mapping[str, Any]
    host_ns: Mapping[str, float]
    operators: tuple[OperatorTime, ...]
    standard: tuple[OperatorTime, ...]
    skipped: Mapping[str, int]
    links: LinkRates | None


def calibrate(signatures: Sequence[str] = (), *, plan: Plan | None = None) -> Calibration:
    """Measure this machine, or with a plan the hosts and links of a lab built by it."""
    with tempfile.TemporaryDirectory(prefix="sandtable-calibrate-") as directory:
        wanted, found = Path(directory) / "wanted.json", Path(directory) / "found.json"
        wanted.write_text(json.dumps(list(signatures)), encoding="utf-8")
        if plan is None:
            _run_here([sys.executable, *_probe("operators"), str(wanted), str(found)])
            return _merge([_load(found)], None)
        with Lab(plan) as lab:
            # One file a host: they share the disk.
            line = 'file=$1.$NODE_RANK; shift; exec "$@" "$file"'
            _run(lab, ["sh", "-c", line, "sh", str(found), sys.executable, *_probe("operators"), str(wanted)])
            results = [_load(Path(f"{found}.{index}")) for index in range(len(plan.hosts))]
            links = _measure_links(lab, found) if len(plan.hosts) > 1 else None
        return _merge(results, links)


def _measure_links(lab: Lab, found: Path) -> LinkRates | None:
    """The links as gloo finds them; nothing to say where no cable is slowed."""
    rates = [host.bandwidth_bytes_per_s for host in lab.plan.hosts]
    if not all(rates):
        return None
    _run(lab, [sys.executable, "-m", "torch.distributed.run", *_probe("links"), str(found)])
    data = _load(found)
    # Each cable carries 2 (n - 1) / n of the message.
    fastest_s = 2 * (len(rates) - 1) / len(rates) / min(rates)
    shares = [size * fastest_s / seconds for size, seconds in data["all_reduce"] if size >= _LARGE_BYTES]
    # A message between two hosts is easily held up by other work of the machine: the quickest pair shows the cable.
    return LinkRates(
        message_share=max(_message_shares(data["ping"], rates)),
        all_reduce_share=min(1.0, median(shares)),
        latency_ns=1e9 * min(each[2] for each in data["ping"] if each[1] <= 4),
        core_ns_per_byte=1e9 * data["core_seconds_per_byte"],
    )


def _message_shares(pings: Sequence[Sequence[float]], rates: Sequence[float]) -> list[float]:
    """Share of the cable between the first host and each other one, from the two largest messages.

    The difference of the two leaves out what every message costs, and the burst that a rested link lets through.
    """
    shares = []
    for peer in range(1, len(rates)):
        (small, small_s), (large, large_s) = [(size, s) for to, size, s in pings if to == peer][-2:]
        fastest_s = (large - small) / min(rates[0], rates[peer])
        shares.append(fastest_s / max(large_s - small_s, fastest_s))
    return shares


def _merge(results: Sequence[Mapping[str, Any]], links: LinkRates | None) -> Calibration:
    """The median over the hosts."""
    first = results[0]
    device = {**first["device"], "share": median(each["device"]["share"] for each in results)}
    if first["device"]["type"] == "cpu":
        device["memory_bytes"] = first["device"]["memory_bytes"] // len(results)
    return Calibration(
        device=device,
        host_ns={name: median(each["host"][name] for each in results) for name in first["host"]},
        operators=_median_rows([each["rows"] for each in results]),
        standard=_median_rows([each["standard"] for each in results]),
        skipped=first["skipped"],
        links=links,
    )


def _median_rows(tables: Sequence[Sequence[Sequence[Any]]]) -> tuple[OperatorTime, ...]:
    times: dict[str, list[float]] = {}
    for table in tables:
        for signature, ns in table:
            times.setdefault(signature, []).append(ns)
    return tuple(OperatorTime(signature=text, ns=median(found)) for text, found in times.items())


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
    return LabError(f"the probe {probe} must run to its end, but it failed; it printed:\n{output}")


def _load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
