"""Machines, networks, groups and sites: what a file says is what is loaded, and what it does not say is documented."""

import pickle
import tomllib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from tests.cluster.machines import HEAD, MACHINE, MIXED, SITED, TREE

from sandtable.cluster import Topology, load, load_device, names, network_names
from sandtable.errors import ClusterError

CATALOGUE = files("sandtable.cluster.catalogue")
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_text(text: str, name: str = "mine.toml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_text


@pytest.mark.parametrize("name", names())
def test_every_machine_of_the_catalogue_says_its_links_with_source_and_status(name: str) -> None:
    entry = tomllib.loads((CATALOGUE / "machines" / f"{name}.toml").read_text(encoding="utf-8"))
    for key in ("scale_up", "host", "nics"):
        assert entry[key]["source"]
        assert entry[key]["status"] in ("measured", "fitted", "nominal")
    kind = load(name).node
    assert 1e9 <= kind.scale_up.bandwidth_bytes_per_s * kind.scale_up.efficiency <= 1e12
    assert 1e7 <= kind.nics.bandwidth_bytes_per_s <= 5e10
    assert kind.nics.bandwidth_bytes_per_s <= kind.host.pcie_bytes_per_s, "an adapter is not faster than PCIe"
    assert set(kind.nics.of_gpu) == set(range(kind.nics.count))


@pytest.mark.parametrize(
    "name",
    [
        *("dgx1-p100", "dgx1-v100", "dgx2-v100", "dgx2h-v100", "dgx-a100-40", "dgx-a100", "dgx-h100", "dgx-h200"),
        *(
            "dgx-b200",
            "mi250x",
            "mi300x",
            "selene",
            "vtrain-a100",
            "mosaicml-a100",
            "mosaicml-h100",
            "grand-teton-h100",
        ),
        *("p3.2xlarge", "p3.16xlarge", "nc24v3", "titan-x", "titan-x+40gbe", "big-basin-p100", "polus", "polus-cpu"),
        *("lomonosov-2", "lomonosov-2-cpu", "lab"),
        *(f"{gpu}+{rate}gbe" for gpu in ("rtx3090", "rtx4090", "l4", "l40s", "a10") for rate in (1, 10, 25, 100)),
    ],
)
def test_what_the_published_figures_ran_on_is_in_the_catalogue(name: str) -> None:
    assert load(name, nodes=2).num_nodes == 2


@pytest.mark.parametrize(
    ("name", "num_gpus", "num_nics", "gbit_per_s", "inside_gb_per_s"),
    [
        ("dgx-a100", 8, 8, 200, 235),
        ("dgx-h100", 8, 8, 400, 370),
        ("dgx-b200", 8, 8, 400, 682),
        ("dgx2-v100", 16, 8, 100, 134.5),
        ("vtrain-a100", 8, 4, 200, 229.4),
        ("p3.16xlarge", 8, 1, 25, 134.5),
        ("lab", 1, 1, 0.2, 4),
    ],
)
def test_known_machines_have_known_links(
    name: str, num_gpus: int, num_nics: int, gbit_per_s: float, inside_gb_per_s: float
) -> None:
    kind = load(name).node
    assert (kind.num_gpus, kind.nics.count) == (num_gpus, num_nics)
    assert kind.nics.bandwidth_bytes_per_s == pytest.approx(gbit_per_s * 1e9 / 8)
    assert kind.scale_up.bandwidth_bytes_per_s * kind.scale_up.efficiency / 1e9 == pytest.approx(
        inside_gb_per_s, rel=2e-3
    )


def test_only_switches_of_hopper_and_later_reduce() -> None:
    reducing = {name for name in names() if load(name).node.scale_up.nvls}
    assert {"dgx-h100", "dgx-h200", "dgx-b200"} <= reducing
    assert not reducing & {"dgx-a100", "dgx2-v100", "mi300x"}


def test_a_file_without_links_gets_those_of_a_plain_server_and_says_they_are_assumed(write: Write) -> None:
    kind = load(write(HEAD)).node
    assert (kind.scale_up.kind, kind.scale_up.bandwidth_bytes_per_s) == ("pcie", 31.5e9)
    assert (kind.nics.count, kind.nics.bandwidth_bytes_per_s, kind.nics.transport) == (1, 25e9 / 8, "tcp")
    assert kind.host.root_bytes_per_s == 8 * 31.5e9
    for table in (kind.scale_up, kind.host, kind.nics, load(write(HEAD)).fabric):
        assert table.origin.status == "nominal"
        assert table.origin.source.startswith("assumed: not in the file")


def test_a_file_says_it_all(write: Write) -> None:
    cluster = load(write(TREE), nodes=14)
    kind = cluster.node
    assert (kind.scale_up.kind, kind.scale_up.latency_ns, kind.scale_up.efficiency) == ("nvswitch", 1000, 0.8)
    assert (kind.host.num_cores, kind.host.pcie_bytes_per_s) == (64, 31.5e9)
    assert kind.nics.of_gpu == (0, 0, 1, 1, 2, 2, 3, 3)
    assert (kind.nics.origin.status, kind.nics.origin.source) == ("measured", "the box")
    assert [tier.below for tier in cluster.fabric.tiers] == [4, 3, 0]
    assert kind.usd_per_hour is None


def test_adapters_may_be_given_to_gpus_in_any_order(write: Write) -> None:
    path = write(MACHINE.replace("[nics]", "[nics]\ngpu_to_nic = [3, 3, 2, 2, 1, 1, 0, 0]"))
    topology = Topology(load(path, nodes=2))
    assert topology.nic_of.tolist() == [3, 3, 2, 2, 1, 1, 0, 0, 7, 7, 6, 6, 5, 5, 4, 4]


def test_a_price_is_in_dollars_for_a_node_and_hour() -> None:
    assert load("p3.16xlarge").node.usd_per_hour == 24.48


def test_a_network_takes_the_place_of_the_machines_own() -> None:
    plain, fast = load("rtx4090").node, load("rtx4090+100gbe", nodes=3)
    assert fast.name == "rtx4090+100gbe"
    assert fast.title == "PCIe host (8 x GeForce RTX 4090), 100 Gbit/s Ethernet"
    assert fast.node.nics.bandwidth_bytes_per_s == 10 * plain.nics.bandwidth_bytes_per_s
    assert fast.node.scale_up == plain.scale_up


@pytest.mark.parametrize("network", network_names())
def test_every_network_goes_with_machines_of_one_gpu_and_of_many(network: str) -> None:
    for machine in ("titan-x", "dgx-a100"):
        kind = load(f"{machine}+{network}", nodes=2).node
        assert set(kind.nics.of_gpu) == set(range(kind.nics.count)), "no more adapters than GPUs"


def test_a_network_goes_with_a_users_own_file(write: Write) -> None:
    loaded = load(f"{write(MACHINE)}+10gbe", nodes=2)
    assert (loaded.name, loaded.node.nics.transport) == ("mine+10gbe", "tcp")


def test_a_plus_in_the_name_of_a_file_is_part_of_it(write: Write) -> None:
    assert load(write(MACHINE, "mine+yours.toml")).name == "mine+yours"


def test_unknown_networks_and_machines_are_told_apart() -> None:
    with pytest.raises(ClusterError, match="unknown network '20gbe'; did you mean"):
        load("rtx4090+20gbe")
    with pytest.raises(ClusterError, match=r"unknown cluster 'rtx4091'; did you mean 'rtx4090'\?"):
        load("rtx4091+25gbe")


def test_groups_are_numbered_in_their_order(write: Write) -> None:
    mixed = load(write(MIXED))
    assert (mixed.num_nodes, mixed.num_devices, mixed.gpus_per_node) == (6, 42, 2)
    assert [mixed.kind_of(node).name for node in range(6)] == [
        *["dgx-a100"] * 2,
        *["rtx4090+25gbe"] * 3,
        "mine.2.machine",
    ]
    assert mixed.device_of(0) == load_device("a100-sxm4-80gb")
    assert mixed.device_of(41) == load_device("titan-x-pascal")
    assert mixed.device_of(5, processes_per_node=2) == load_device("rtx4090")
    assert pickle.loads(pickle.dumps(mixed)) == mixed


def test_unequal_nodes_have_no_one_device(write: Write) -> None:
    mixed = load(write(MIXED))
    with pytest.raises(ClusterError, match=r"the nodes of 'mine' must be equal for this.*device_of\(rank\)"):
        _ = mixed.device
    with pytest.raises(ClusterError, match="must be between 0 and 5, but got 6"):
        mixed.kind_of(6)


def test_nodes_that_differ_in_their_links_only_have_one_device(write: Write) -> None:
    text = MIXED.split("[[groups]]")[0] + "\n".join(
        f'[[groups]]\nmachine = "lab"\nnum_nodes = 2\n[groups.nics]\ncount = 1\ngbit_per_s = {rate}\nlatency_us = 50\n'
        'transport = "tcp"\nsource = "shaped"\nstatus = "nominal"\n'
        for rate in (0.2, 0.05)
    )
    lab = load(write(text))
    assert lab.device.id == "cpu-core"
    topology = Topology(lab)
    assert topology.route_bandwidth_bytes_per_s(topology.routes([0, 0, 2], [1, 2, 3])) == pytest.approx(
        [0.9 * 0.025e9, 0.9 * 0.00625e9, 0.9 * 0.00625e9]
    )


def test_a_group_may_name_a_file_beside_it(write: Write) -> None:
    write(MACHINE, "inner.toml")
    outer = load(write(MIXED.replace('"dgx-a100"', '"inner.toml"')))
    assert outer.groups[0].kind.nics.count == 4


def test_fewer_nodes_are_the_first_ones(write: Write) -> None:
    mixed = load(write(MIXED), nodes=3)
    assert [(group.kind.name, group.num_nodes) for group in mixed.groups] == [("dgx-a100", 2), ("rtx4090+25gbe", 1)]
    assert load(write(MIXED), nodes=2).is_uniform
    sited = load(write(SITED), nodes=4)
    assert [(site.name, site.num_nodes) for site in sited.fabric.sites] == [("east", 3), ("west", 1)]
    with pytest.raises(ClusterError, match=r"nodes \(7\) must be at most 6, .*; try --nnodes 6"):
        load(write(MIXED), nodes=7)


def test_sites_say_how_many_nodes_there_are(write: Write) -> None:
    assert load(write(SITED)).num_nodes == 5


@pytest.mark.parametrize(
    ("placement", "nodes", "slots"),
    [
        ('"node-major"', [0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1]),
        ('"round-robin"', [0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 1, 1]),
        ("[2, 0, 1]", [2, 2, 0, 0, 1, 1], [0, 1, 0, 1, 0, 1]),
        ("[2, 0]", [2, 2, 0, 0], [0, 1, 0, 1]),
    ],
)
def test_ranks_are_dealt_as_placement_says(write: Write, placement: str, nodes: list[int], slots: list[int]) -> None:
    cluster = load(
        write(MACHINE.replace("gpus_per_node = 8", f"gpus_per_node = 8\nnum_nodes = 3\nplacement = {placement}"))
    )
    node_of, slot_of = cluster.place(ranks_per_node=2)
    assert (node_of.tolist(), slot_of.tolist()) == (nodes, slots)


def test_round_robin_over_unequal_nodes_skips_those_that_are_full(write: Write) -> None:
    mixed = load(write(MIXED.replace("[[groups]]", 'placement = "round-robin"\n[[groups]]', 1)))
    node_of, slot_of = mixed.place()
    assert node_of[:14].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1]
    assert (node_of[-5:].tolist(), slot_of[-5:].tolist()) == ([0, 1, 2, 3, 4], [7] * 5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"ranks_per_node": 3}, r"ranks per node \(3\) must be between 1 and the 2 GPUs of the smallest node"),
        ({"ranks_per_node": 0}, r"ranks per node \(0\) must be between 1"),
        (
            {"num_ranks": 43},
            r"the number of ranks \(43\) must be between 1 and 42, the capacity of the 6 nodes",
        ),
        ({"num_ranks": 0}, r"the number of ranks \(0\) must be between 1"),
    ],
)
def test_ranks_without_a_place_are_refused(write: Write, keys: dict[str, int], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        load(write(MIXED)).place(**keys)


def test_require_counts_unequal_nodes(write: Write) -> None:
    mixed = load(write(MIXED))
    mixed.require(12, processes_per_node=2)
    with pytest.raises(
        ClusterError, match=r"at most the cluster's 42 GPUs \(2 nodes x 8 \+ 3 nodes x 8 \+ 1 node x 2\)"
    ):
        mixed.require(44, processes_per_node=2)


def test_a_mesh_gives_few_gpus_few_of_their_links() -> None:
    """Against bus bandwidths measured on such a mesh (vTrain's data): 2 to 8 GPUs, in GB/s."""
    kind = load("dgx1-v100").node
    port = kind.scale_up.bandwidth_bytes_per_s * kind.scale_up.efficiency / 1e9
    measured = {2: 22.6, 3: 45.1, 4: 85.4, 6: 45.7, 7: 87.0, 8: 134.5}
    for number, rate in measured.items():
        assert port * kind.scale_up_share(range(number)) == pytest.approx(rate, rel=0.06)
    assert port * kind.scale_up_share([0, 3]) == pytest.approx(2 * 22.4, rel=0.01)


def test_gpus_of_a_mesh_without_a_direct_link_go_over_pcie() -> None:
    kind = load("dgx1-v100").node
    rate = kind.scale_up.bandwidth_bytes_per_s * kind.scale_up.efficiency * kind.scale_up_share([0, 7])
    assert rate == pytest.approx(15.75e9 * 0.8)


@pytest.mark.parametrize("name", ["dgx-a100", "l4"])
def test_behind_a_switch_any_gpus_have_all_their_port(name: str) -> None:
    assert load(name).node.scale_up_share([0, 3]) == 1.0
