"""The catalogue on a terminal: a list of its machines, or one cluster with its links and their topology."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.tree import Tree

from sandtable.cluster import Cluster, NodeKind, Origin, SwitchTier, Topology, TopologyBranch, describe_topology
from sandtable.units import GB, GBIT_BYTES, NS_PER_MS, NS_PER_US, TERA, format_bytes

__all__ = ["print_cluster", "print_clusters"]

_STYLES = {"measured": "green", "fitted": "cyan", "nominal": "yellow"}


def print_clusters(clusters: Sequence[Cluster], networks: Sequence[str], console: Console) -> None:
    """Print one line per machine: its devices, its links inside and outwards, and its price."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("name", "devices", "inside", "outwards", "$/hour"):
        table.add_column(name, justify="right" if name == "$/hour" else "left", no_wrap=name == "name")
    for cluster in clusters:
        kind = cluster.groups[0].kind
        devices = f"{kind.num_gpus} × {kind.device.name}"
        if cluster.num_nodes > 1:
            devices = f"{cluster.num_nodes} nodes of {devices}"
        table.add_row(cluster.name, escape(devices), _inside(kind), _outwards(kind), _price(kind))
    console.print(table)
    console.print(
        f"\n[dim]With another network:[/dim] rtx4090+25gbe[dim], where networks are[/dim] {', '.join(networks)}\n"
        "[dim]GB/s are what large transfers reach, per direction; [/dim][green]measured[/green][dim] or [/dim]"
        "[yellow]nominal[/yellow][dim]. Details: [/dim]sandtable cluster show NAME",
        highlight=False,
    )


def print_cluster(cluster: Cluster, console: Console) -> None:
    """Print everything the entry contains, with unit, status and source, and the tree of its switches."""
    size = f"{_plural(cluster.num_nodes, 'node')}, {_plural(cluster.num_devices, 'device')}"
    console.print(f"[bold]{escape(cluster.title)}[/bold] ({escape(cluster.name)}): {size}")
    for group in cluster.groups:
        if not cluster.is_uniform:
            console.print(f"\n{group.num_nodes:,} × [bold]{escape(group.kind.title)}[/bold]", highlight=False)
        console.print(Padding(_facts(_node_rows(group.kind)), (1, 0, 0, 0)))
    console.print(Padding(_facts(_fabric_rows(cluster)), (1, 0, 0, 0)))
    console.print()
    console.print(_picture(describe_topology(Topology(cluster)).tree), highlight=False)


def _facts(rows: Sequence[tuple[str, str, Origin | None]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name in ("what", "figure", "status", "source"):
        table.add_column(name, style="dim" if name in ("what", "source") else "", no_wrap=name in ("what", "status"))
    for what, figure, origin in rows:
        status = f"[{_STYLES.get(origin.status, '')}]{origin.status}[/]" if origin else ""
        table.add_row(what, escape(figure), status, escape(origin.source) if origin else "")
    return table


def _node_rows(kind: NodeKind) -> list[tuple[str, str, Origin | None]]:
    device, up, host, nics = kind.device, kind.scale_up, kind.host, kind.nics
    peak = max(device.matmul.bfloat16, device.matmul.float16, device.matmul.float32) / TERA
    rows: list[tuple[str, str, Origin | None]] = [
        (
            "devices",
            f"{kind.num_gpus} × {device.name}: {format_bytes(device.memory_bytes)}, "
            f"{device.memory_bandwidth_bytes_per_s / GB:,.0f} GB/s, at most {peak:,.4g} TFLOP/s",
            kind.origin,
        ),
        (
            "inside",
            f"{up.kind}, {_achieved(up.bandwidth_bytes_per_s, up.efficiency)} per GPU each way, "
            f"{up.latency_ns / NS_PER_US:g} us{', NVLS' if up.nvls else ''}{', mesh' if up.mesh else ''}",
            up.origin,
        ),
        ("host", _host(kind), host.origin),
        (
            "outwards",
            f"{nics.count} × {_gbit(nics.bandwidth_bytes_per_s)} {nics.transport}, "
            f"{_achieved(nics.bandwidth_bytes_per_s, nics.efficiency)} each, {nics.latency_ns / NS_PER_US:g} us, "
            f"{_sharing(kind)}",
            nics.origin,
        ),
    ]
    if kind.price:
        rows.append(("price", f"{kind.price.usd_per_node_hour:,.2f} USD per node-hour", kind.price.origin))
    return rows


def _sharing(kind: NodeKind) -> str:
    """Return which GPU uses which adapter, in words."""
    of_gpu = kind.nics.of_gpu
    if of_gpu == tuple(range(kind.num_gpus)):
        return "one per GPU" if kind.num_gpus > 1 else "its own"
    return "shared by all" if set(of_gpu) == {0} else f"GPU to adapter {', '.join(map(str, of_gpu))}"


def _host(kind: NodeKind) -> str:
    host = kind.host
    text = f"{_achieved(host.pcie_bytes_per_s, host.efficiency)} to each GPU"
    if not kind.scale_up.has_nvlink:
        text += f", {_achieved(host.root_bytes_per_s, host.efficiency)} for all together"
    return f"{text}, {_plural(host.num_cores, 'core')}" if host.num_cores else text


def _fabric_rows(cluster: Cluster) -> list[tuple[str, str, Origin | None]]:
    fabric = cluster.fabric
    figure = "rails: adapter k of a node on leaf k" if fabric.rails else "no rails"
    figure += "" if fabric.tiers else ", one switch that is never full"
    rows: list[tuple[str, str, Origin | None]] = [("fabric", figure, fabric.origin)]
    for level, tier in enumerate(fabric.tiers[:-1]):
        below = f"{tier.below} nodes" if level == 0 else f"{tier.below} switches"
        figure = f"{below} per switch, {_uplink(tier)}, {tier.latency_ns / NS_PER_US:g} us"
        rows.append((f"tier {level + 1}", figure, tier.origin))
    for site in fabric.sites:
        link = f"{_gbit(site.bandwidth_bytes_per_s)}, {site.latency_ns / NS_PER_MS:g} ms to the others"
        rows.append(("site", f"{site.name}: {site.num_nodes} nodes, {link}", site.origin))
    order = (
        cluster.placement if isinstance(cluster.placement, str) else f"nodes {', '.join(map(str, cluster.placement))}"
    )
    return [*rows, ("ranks", order, None)]


def _picture(branch: TopologyBranch, parent: Tree | None = None) -> Tree:
    """Return the tree of switches; each label gives the number of equal branches and the rate of their uplink."""
    tree = Tree(_label(branch)) if parent is None else parent.add(_label(branch))
    for child in branch.children:
        _picture(child, tree)
    return tree


def _label(branch: TopologyBranch) -> str:
    count = f"{branch.count:,} × " if branch.count > 1 else ""
    name = escape(branch.label) if branch.kind in ("node", "gpu", "site") else branch.label
    rails = f", {branch.rails} rails" if branch.rails > 1 else ""
    nics = f" over {branch.num_nics} {branch.transport}" if branch.num_nics else ""
    link = f"  [dim]{_number(branch.gb_per_s)} GB/s up{nics}{rails}[/dim]" if branch.gb_per_s else ""
    return f"{count}{name}{link}"


def _inside(kind: NodeKind) -> str:
    up = kind.scale_up
    rate = up.bandwidth_bytes_per_s * up.efficiency / GB
    return f"{up.kind} [{_STYLES[up.origin.status]}]{rate:,.3g} GB/s[/]"


def _outwards(kind: NodeKind) -> str:
    nics = kind.nics
    rate = f"[{_STYLES[nics.origin.status]}]{nics.bandwidth_bytes_per_s * nics.efficiency / GB:,.3g} GB/s[/]"
    return f"{nics.count} × {_gbit(nics.bandwidth_bytes_per_s)} {nics.transport} {rate}"


def _price(kind: NodeKind) -> str:
    return f"{kind.price.usd_per_node_hour:,.2f}" if kind.price else ""


def _achieved(nominal_bytes_per_s: float, efficiency: float) -> str:
    return f"{nominal_bytes_per_s * efficiency / GB:,.4g} of {nominal_bytes_per_s / GB:,.4g} GB/s"


def _uplink(tier: SwitchTier) -> str:
    if tier.uplink_bytes_per_s:
        return f"{_gbit(tier.uplink_bytes_per_s)} upwards"
    return "full rate upwards" if tier.oversubscription == 1 else f"{tier.oversubscription:g}:1 oversubscribed"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _plural(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def _gbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s / GBIT_BYTES:g} Gbit/s"
