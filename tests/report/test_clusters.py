"""The catalogue on a terminal: every machine is listed, and one is shown with units, status, source and picture."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from tests.cluster.machines import MIXED, SITED, TREE
from typer.testing import CliRunner

from sandtable.cli import app
from sandtable.cluster import Cluster, load, names, network_names
from sandtable.report.clusters import print_cluster, print_clusters

Show = Callable[[Cluster], str]


@pytest.fixture
def show() -> Show:
    def drawn(cluster: Cluster) -> str:
        console = Console(width=200, force_terminal=False)
        with console.capture() as capture:
            print_cluster(cluster, console)
        return capture.get()

    return drawn


@pytest.mark.parametrize("name", names())
def test_every_entry_can_be_shown(show: Show, name: str) -> None:
    cluster = load(name)
    text = show(cluster)
    assert cluster.title in text
    assert cluster.device.name in text
    assert cluster.node.nics.origin.source.split()[0] in text


def test_links_have_units_status_and_source(show: Show) -> None:
    text = show(load("dgx-a100", nodes=45))
    assert "nvswitch, 234.9 of 300 GB/s per GPU each way, 1 us" in text
    assert "8 × 200 Gbit/s rdma, 24 of 25 GB/s each, 2 us, one per GPU" in text
    assert "measured" in text
    assert "ConnectX-6" in text


def test_the_picture_shows_switches_nodes_and_gpus(show: Show) -> None:
    text = show(load("dgx-a100", nodes=45))
    assert "├── 2 × leaf  4,000 GB/s up, 8 rails" in text
    assert "20 × NVIDIA DGX A100" in text
    assert "5 × NVIDIA DGX A100" in text


def test_a_price_is_shown_where_there_is_one(show: Show) -> None:
    assert "24.48 USD per node-hour" in show(load("p3.16xlarge"))
    assert "USD" not in show(load("dgx-a100"))


def test_tiers_and_sites_are_shown(show: Show, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TREE, encoding="utf-8")
    text = show(load(path, nodes=14))
    assert "4 nodes per switch, 2:1 oversubscribed, 0.6 us" in text
    assert "3 switches per switch, 1000 Gbit/s upwards, 0.8 us" in text
    assert "GPU to adapter 0, 0, 1, 1, 2, 2, 3, 3" in text
    path.write_text(SITED, encoding="utf-8")
    assert "west: 2 nodes, 5 Gbit/s, 15 ms to the others" in show(load(path))


def test_unequal_nodes_are_each_shown(show: Show, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MIXED.replace('title = "the old one"', 'title = "the [old] one"'), encoding="utf-8")
    text = show(load(path))
    assert "3 × PCIe host (8 x GeForce RTX 4090)" in text
    assert "the [old] one" in text, "brackets are text, not markup"


def test_the_list_has_every_machine_and_network() -> None:
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        print_clusters([load(name) for name in names()], network_names(), console)
    lines = capture.get().splitlines()
    assert {line.split(" ")[0] for line in lines} >= set(names())
    assert all(network in capture.get() for network in network_names())


def test_the_command_lists_and_shows() -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["cluster", "list"])
    assert listed.exit_code == 0
    assert "dgx-h100" in listed.output
    shown = runner.invoke(app, ["cluster", "show", "rtx4090+25gbe", "--nnodes", "4"])
    assert shown.exit_code == 0
    assert "4 nodes, 32 devices" in " ".join(shown.output.split())


def test_the_command_refuses_what_it_does_not_know() -> None:
    result = CliRunner().invoke(app, ["cluster", "show", "dgx-h10"])
    assert result.exit_code == 1
    assert "did you mean" in str(result.exception)
