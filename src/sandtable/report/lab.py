"""The traffic on a lab's links, as a table."""

from rich.console import Console
from rich.table import Table

from sandtable.lab import HostTraffic, LabResult
from sandtable.units import format_bytes, format_count, format_seconds

__all__ = ["print_lab"]


def print_lab(result: LabResult, console: Console) -> None:
    """Print one row per host and per link between sites, then the duration."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("host")
    for title in ("sent", "received", "packets out", "packets in", "exit code"):
        table.add_column(title, justify="right")
    for host in result.hosts:
        table.add_row(host.name, *_cells(host.traffic), str(host.exit_code))
    for name, traffic in result.sites.items():
        table.add_row(f"site {name}", *_cells(traffic), "")
    console.print(table)
    late = "" if result.in_time else ", ended by the lab"
    console.print(f"took {format_seconds(result.seconds)}{late}", highlight=False)


def _cells(traffic: HostTraffic) -> list[str]:
    return [
        format_bytes(traffic.sent_bytes),
        format_bytes(traffic.received_bytes),
        format_count(traffic.sent_packets),
        format_count(traffic.received_packets),
    ]
