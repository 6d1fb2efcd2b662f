"""Summary: all figures of a rehearsed run as plain data, worked out once and drawn many ways.

`summary.json` is this, with a schema name and a version; docs/report.md explains every key. A key is never renamed or
given another meaning within a version; new keys may come.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sandtable import __version__
from sandtable.engine.memory import MemoryUse, memory_use
from sandtable.errors import ReportError
from sandtable.report.needs import Timeline
from sandtable.report.times import RankTimes, break_down
from sandtable.report.traffic import TierLoad, TransactionSizes, load_tiers, size_transactions
from sandtable.report.work import Efficiency, measure_efficiency, peak_of
from sandtable.trace import Summary, Trace, summarise
from sandtable.trace.summary import format_ranks
from sandtable.units import NS_PER_S

__all__ = ["SCHEMA", "VERSION", "Asked", "RunSummary", "load_summary", "save_summary", "summarise_run"]

SCHEMA = "sandtable-summary"
VERSION = 1
FILE_NAME = "summary.json"

_S_PER_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What only the user or the caller knows: the batch, the price, and what simulating cost."""

    tokens_per_step: int | None = None
    samples_per_step: int | None = None
    usd_per_gpu_hour: float | None = None
    cluster: str = ""
    """The name or file that `--cluster` was given, to simulate the run again."""
    what_if: Mapping[str, Any] = field(default_factory=dict)
    simulation_wall_seconds: float = 0.0
    simulation_core_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSummary:
    name: str
    num_ranks: int
    memory_bytes: int
    peak_flops_per_s: int
    """In the number type of `Efficiency.dtype`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOrigin:
    """Where the numbers of a kind of links come from; `status` is measured, fitted or nominal."""

    kind: str
    bandwidth_bytes_per_s: float | None
    """Nominal, in each direction; None where it follows from what is below (a switch's uplinks)."""
    source: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSummary:
    name: str
    asked: str
    title: str
    num_nodes: int
    ranks_per_node: int
    devices: tuple[DeviceSummary, ...]
    links: tuple[LinkOrigin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMemory:
    """The fullest moment of the ranks of one class."""

    representative: int
    num_ranks: int
    ranks: str
    use: MemoryUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    tokens_per_step: int | None
    tokens_per_s: float | None
    tokens_per_s_per_gpu: float | None
    samples_per_step: int | None
    samples_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a step takes of the cluster; money only where a price is known."""

    gpu_hours_per_step: float
    gpu_hours_per_1000_steps: float
    usd_per_gpu_hour: float | None
    usd_per_step: float | None
    usd_per_1000_steps: float | None
    price_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What the rehearsal itself took, and how many seconds of GPUs a second of a core stood in for."""

    capture_wall_seconds: float
    capture_core_seconds: float
    simulation_wall_seconds: float
    simulation_core_seconds: float
    peak_rss_bytes: int
    gpu_seconds_per_core_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The figures of a run; `capture` holds what the trace alone says (classes, calls, host waits, notes)."""

    command: tuple[str, ...]
    world_size: int
    step_seconds: float
    cluster: ClusterSummary
    breakdown: dict[str, RankTimes]
    efficiency: Efficiency
    throughput: Throughput | None
    memory: tuple[ClassMemory, ...]
    tiers: tuple[TierLoad, ...]
    transactions: tuple[TransactionSizes, ...]
    cost: Cost
    basis: dict[str, float]
    what_if: dict[str, Any]
    effort: Effort
    capture: Summary

    def to_dict(self) -> dict[str, Any]:
        """Dictionaries, lists, texts and numbers, ready for JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "capture"}
        body = {name: _plain(value) for name, value in plain.items()}
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "sandtable": __version__,
            **body,
            "capture": self.capture.to_dict(),
        }


def summarise_run(trace: Trace, timeline: Timeline, asked: Asked | None = None) -> RunSummary:
    """Adds up what a trace and its timeline say."""
    asked = asked or Asked()
    efficiency = measure_efficiency(trace, timeline)
    seconds = timeline.step_ns / NS_PER_S
    return RunSummary(
        command=trace.command,
        world_size=trace.world_size,
        step_seconds=seconds,
        cluster=_cluster(trace, timeline, efficiency.dtype, asked),
        breakdown=break_down(timeline),
        efficiency=efficiency,
        throughput=_throughput(asked, seconds, trace.world_size),
        memory=tuple(
            ClassMemory(
                representative=each.representative,
                num_ranks=each.size,
                ranks=format_ranks(each.ranks),
                use=memory_use(trace.rank(each.representative)),
            )
            for each in trace.classes
        ),
        tiers=load_tiers(timeline),
        transactions=size_transactions(timeline),
        cost=_cost(asked, timeline, seconds, trace.world_size),
        basis=dict(timeline.basis),
        what_if=dict(asked.what_if),
        effort=_effort(asked, trace, seconds),
        capture=summarise(trace),
    )


def save_summary(summary: RunSummary, path: Path) -> None:
    """Writes `summary.json`; the same figures give the same bytes."""
    path.write_text(json.dumps(summary.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def load_summary(path: Path) -> dict[str, Any]:
    """Reads what `save_summary` wrote, from the file or from its directory."""
    path = path / FILE_NAME if path.is_dir() else path
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(
            f"a run to report on must have a {FILE_NAME}, but {path} cannot be read ({error}); "
            "give a directory that `sandtable run --out` wrote"
        ) from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or data.get("version") != VERSION:
        found = data.get("version") if isinstance(data, dict) else None
        raise ReportError(
            f"the version of a summary must be {VERSION}, but {path} has {found}; "
            "write it again with `sandtable report` on the run's directory"
        )
    return data


def _cluster(trace: Trace, timeline: Timeline, dtype: str, asked: Asked) -> ClusterSummary:
    cluster, topology = timeline.cluster, timeline.topology
    numbers = np.bincount(topology.device_index, minlength=len(topology.devices)).tolist()
    return ClusterSummary(
        name=cluster.name,
        asked=asked.cluster or cluster.name,
        title=cluster.title,
        num_nodes=cluster.num_nodes,
        ranks_per_node=trace.ranks_per_node,
        devices=tuple(
            DeviceSummary(
                name=device.name,
                num_ranks=number,
                memory_bytes=device.memory_bytes,
                peak_flops_per_s=peak_of(device, dtype),
            )
            for number, device in zip(numbers, topology.devices, strict=True)
        ),
        links=tuple(_origins(cluster)),
    )


def _origins(cluster: Any) -> list[LinkOrigin]:
    """Of each kind of link that the cluster's description has, once."""
    found: dict[LinkOrigin, None] = {}

    def add(kind: str, part: Any, bandwidth: float) -> None:
        if part.origin is not None:
            origin = part.origin
            row = LinkOrigin(
                kind=kind, bandwidth_bytes_per_s=bandwidth or None, source=origin.source, status=origin.status
            )
            found[row] = None

    for group in getattr(cluster, "groups", ()):
        add(group.kind.scale_up.kind, group.kind.scale_up, group.kind.scale_up.bandwidth_bytes_per_s)
        add("nic", group.kind.nics, group.kind.nics.bandwidth_bytes_per_s)
    fabric = getattr(cluster, "fabric", None)
    for tier in fabric.tiers if fabric else ():
        add("switch", tier, tier.uplink_bytes_per_s)
    for site in fabric.sites if fabric else ():
        add("site", site, site.bandwidth_bytes_per_s)
    return list(found)


def _throughput(asked: Asked, seconds: float, world_size: int) -> Throughput | None:
    tokens, samples = asked.tokens_per_step, asked.samples_per_step
    if not seconds or (tokens is None and samples is None):
        return None
    return Throughput(
        tokens_per_step=tokens,
        tokens_per_s=tokens / seconds if tokens is not None else None,
        tokens_per_s_per_gpu=tokens / seconds / world_size if tokens is not None else None,
        samples_per_step=samples,
        samples_per_s=samples / seconds if samples is not None else None,
    )


def _cost(asked: Asked, timeline: Timeline, seconds: float, world_size: int) -> Cost:
    """Whole nodes are paid for, so a node's price is divided among the ranks it has."""
    hours = seconds * world_size / _S_PER_HOUR
    price, source = asked.usd_per_gpu_hour, "given"
    if price is None:
        price, source = _catalogue_price(timeline, world_size)
    return Cost(
        gpu_hours_per_step=hours,
        gpu_hours_per_1000_steps=1000 * hours,
        usd_per_gpu_hour=price,
        usd_per_step=None if price is None else price * hours,
        usd_per_1000_steps=None if price is None else 1000 * price * hours,
        price_source=source,
    )


def _catalogue_price(timeline: Timeline, world_size: int) -> tuple[float | None, str]:
    topology = timeline.topology
    kinds = [timeline.cluster.kind_of(int(node)) for node in np.unique(topology.node_of)]
    prices = [kind.price for kind in kinds]
    if not prices or any(price is None for price in prices):
        return None, ""
    sources = dict.fromkeys(price.origin.source for price in prices)
    return sum(price.usd_per_node_hour for price in prices) / world_size, "; ".join(sources)


def _effort(asked: Asked, trace: Trace, seconds: float) -> Effort:
    core = trace.core_seconds + asked.simulation_core_seconds
    return Effort(
        capture_wall_seconds=trace.wall_seconds,
        capture_core_seconds=trace.core_seconds,
        simulation_wall_seconds=asked.simulation_wall_seconds,
        simulation_core_seconds=asked.simulation_core_seconds,
        peak_rss_bytes=trace.peak_rss_bytes,
        gpu_seconds_per_core_second=seconds * trace.world_size / core if core else None,
    )


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
