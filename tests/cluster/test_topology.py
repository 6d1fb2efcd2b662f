"""Routes and links: which links a message crosses, and what they can carry."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.machines import MIXED, RAILS, SITED, TREE

from sandtable.cluster import Topology, TopologyBranch, describe_topology, load, names
from sandtable.errors import ClusterError

Made = Callable[..., Topology]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Topologies by name: of the files of `machines.py`, or of the catalogue."""
    files = {"tree": TREE, "rails": RAILS, "sites": SITED, "mixed": MIXED}
    folder = tmp_path_factory.mktemp("files")
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")

    def make(name: str, nodes: int | None = None, **keys: int) -> Topology:
        return Topology(load(folder / f"{name}.toml" if name in files else name, nodes=nodes), **keys)

    return make


def way(topology: Topology, src: int, dst: int) -> list[str]:
    return [topology.link_name(link) for link in topology.routes(src, dst)[0] if link >= 0]


SHAPES = [("tree", 14), ("rails", 14), ("sites", None), ("mixed", None), ("lab", None), ("dgx1-v100", 3), ("l4", 2)]


def test_within_a_node_a_message_leaves_by_one_port_and_enters_by_the_other(made: Made) -> None:
    assert way(made("tree", 2), 1, 6) == ["node 0 gpu 1 out", "node 0 gpu 6 in"]


def test_to_itself_a_rank_needs_no_link(made: Made) -> None:
    assert way(made("tree", 2), 3, 3) == []


def test_without_nvlink_gpus_share_the_root_of_their_node(made: Made) -> None:
    assert way(made("l4", 2), 9, 10) == ["node 1 gpu 1 out", "node 1 host", "node 1 gpu 2 in"]
    assert way(made("l4", 2), 0, 9) == [
        *("node 0 gpu 0 out", "node 0 host", "node 0 nic 0 out"),
        *("node 1 nic 0 in", "node 1 host", "node 1 gpu 1 in"),
    ]


def test_to_another_node_nvlink_is_not_touched(made: Made) -> None:
    """Two GPUs share each of the four adapters."""
    assert way(made("tree", 2), 3, 8 + 6) == ["node 0 nic 1 out", "node 1 nic 3 in"]


def test_only_uplinks_of_switches_that_differ_are_crossed(made: Made) -> None:
    tree = made("tree", 14)
    assert way(tree, 0, 8 * 3) == ["node 0 nic 0 out", "node 3 nic 0 in"]
    assert way(tree, 0, 8 * 4) == ["node 0 nic 0 out", "leaf 0 out", "leaf 1 in", "node 4 nic 0 in"]
    assert way(tree, 0, 8 * 12) == [
        *("node 0 nic 0 out", "leaf 0 out", "spine 0 out"),
        *("spine 1 in", "leaf 3 in", "node 12 nic 0 in"),
    ]


def test_with_rails_a_message_changes_rail_over_nvlink_before_it_leaves(made: Made) -> None:
    rails = made("rails", 8)
    assert way(rails, 1, 8 * 4) == ["node 0 nic 0 out", "leaf 0 rail 0 out", "leaf 1 rail 0 in", "node 4 nic 0 in"]
    assert way(rails, 1, 8 * 4 + 7) == [
        *("node 0 gpu 1 out", "node 0 gpu 6 in", "node 0 nic 3 out"),
        *("leaf 0 rail 3 out", "leaf 1 rail 3 in", "node 4 nic 3 in"),
    ]


def test_between_sites_the_slow_link_is_crossed(made: Made) -> None:
    sites = made("sites")
    route = sites.routes(0, 8 * 4)
    assert way(sites, 0, 8 * 4) == [
        *("node 0 nic 0 out", "leaf 0 out", "site east out"),
        *("site west in", "leaf 2 in", "node 4 nic 0 in"),
    ]
    assert sites.route_bandwidth_bytes_per_s(route)[0] == pytest.approx(0.8 * 5e9 / 8)
    assert sites.route_latency_ns(route)[0] == pytest.approx(15_000_000 + 2_000 + 500)


def test_no_switch_serves_two_sites(made: Made) -> None:
    """Three nodes in the east, two below a leaf: node 2 has a leaf of its own, and so have nodes 3 and 4 together."""
    sites = made("sites")
    assert way(sites, 8 * 2, 0) == ["node 2 nic 0 out", "leaf 1 out", "leaf 0 in", "node 0 nic 0 in"]
    assert way(sites, 8 * 3, 8 * 4) == ["node 3 nic 0 out", "node 4 nic 0 in"]


def test_unequal_nodes_have_links_and_devices_of_their_own(made: Made) -> None:
    mixed = made("mixed")
    assert mixed.num_ranks == 2 * 8 + 3 * 8 + 2
    assert [device.id for device in mixed.devices] == ["a100-sxm4-80gb", "rtx4090", "titan-x-pascal"]
    assert mixed.device_index[[0, 15, 16, 39, 40, 41]].tolist() == [0, 0, 1, 1, 2, 2]
    assert mixed.node_of[[15, 16, 41]].tolist() == [1, 2, 5]
    assert way(mixed, 0, 41) == ["node 0 nic 0 out", "node 5 nic 0 in", "node 5 host", "node 5 gpu 1 in"]
    ports = mixed.nominal_bytes_per_s[[0, 2 * 16]]
    assert ports.tolist() == [300e9, 31.5e9]


def test_a_switch_offers_upwards_what_its_nodes_can_send_over_the_oversubscription(made: Made) -> None:
    tree = made("tree", 14)
    leaf, spine = tree.tier("leaf"), tree.tier("spine")
    assert leaf is not None
    assert spine is not None
    assert tree.nominal_bytes_per_s[leaf.first] == pytest.approx(4 * 4 * 25e9 / 2)
    assert tree.nominal_bytes_per_s[leaf.first + 6] == tree.nominal_bytes_per_s[leaf.first], "half used, not half built"
    assert tree.nominal_bytes_per_s[spine.first] == pytest.approx(1000e9 / 8)


def test_achievable_is_nominal_times_efficiency(made: Made) -> None:
    topology = made("dgx-a100", 2)
    nic = topology.tier("nic")
    assert nic is not None
    assert topology.bandwidth_bytes_per_s[0] == pytest.approx(0.783 * 300e9)
    assert topology.bandwidth_bytes_per_s[nic.first] == pytest.approx(0.96 * 25e9)


def test_a_single_node_has_no_network(made: Made) -> None:
    assert [tier.name for tier in made("dgx-a100").tiers] == ["gpu"]


@pytest.mark.parametrize("name", names())
def test_tiers_of_every_machine_number_all_links_once(made: Made, name: str) -> None:
    topology = made(name, min(3, load(name).num_nodes) if load(name).num_nodes > 1 else 3)
    assert [tier.first for tier in topology.tiers] == list(
        np.cumsum([0, *(tier.num_links for tier in topology.tiers)])[:-1]
    )
    assert sum(tier.num_links for tier in topology.tiers) == topology.num_links == len(topology.bandwidth_bytes_per_s)
    assert len({topology.link_name(link) for link in range(topology.num_links)}) == topology.num_links
    assert (topology.bandwidth_bytes_per_s > 0).all()
    assert (topology.bandwidth_bytes_per_s <= topology.nominal_bytes_per_s).all()
    assert (topology.latency_ns >= 0).all()


@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=st.sampled_from(SHAPES))
def test_properties_of_routes(made: Made, data: st.DataObject, shape: tuple[str, int | None]) -> None:
    topology = made(*shape)
    rank = st.integers(0, topology.num_ranks - 1)
    src, dst = data.draw(rank), data.draw(rank)
    there, back = topology.routes([src, dst], [dst, src])
    links, reverse = there[there >= 0], back[back >= 0]
    assert (there[len(links) :] == -1).all(), "what fills up comes last"
    assert len(set(links.tolist())) == len(links), "no link twice"
    names = [topology.link_name(link) for link in links]
    tiers = [topology.tier_of(link).name for link in links]
    a, b = topology.node_of[src], topology.node_of[dst]
    if src == dst:
        assert not names
        return
    if a == b:
        assert set(tiers) <= {"gpu", "host"}
        assert names[0] == f"node {a} gpu {topology.slot_of[src]} out"
        assert names[-1] == f"node {b} gpu {topology.slot_of[dst]} in"
    else:
        nic = topology.nic_of[dst] - topology.nic_of[topology.node_of == b].min()
        assert any(name.startswith(f"node {a} nic") and name.endswith("out") for name in names)
        assert f"node {b} nic {nic} in" in names
    rails = topology.num_rails > 1 and a != b
    if not rails:
        assert len(links) == len(reverse)
        assert sorted(tiers) == sorted(topology.tier_of(link).name for link in reverse)
        assert (
            topology.route_bandwidth_bytes_per_s(there[None])[0] == topology.route_bandwidth_bytes_per_s(back[None])[0]
        )
    assert topology.route_latency_ns(there[None])[0] == pytest.approx(topology.route_latency_ns(back[None])[0])
    assert topology.route_bandwidth_bytes_per_s(there[None])[0] > 0


@settings(max_examples=30, deadline=None)
@given(shape=st.sampled_from(SHAPES), seed=st.integers(0, 2**31))
def test_many_routes_at_once_are_each_route_alone(made: Made, shape: tuple[str, int | None], seed: int) -> None:
    topology = made(*shape)
    src, dst = np.random.default_rng(seed).integers(0, topology.num_ranks, size=(2, 20))
    together = topology.routes(src, dst)
    assert all((together[i] == topology.routes(src[i], dst[i])[0]).all() for i in range(20))


def test_a_rank_against_many_is_broadcast(made: Made) -> None:
    topology = made("tree", 3)
    assert (topology.routes(0, np.arange(24)) == topology.routes(np.zeros(24, int), np.arange(24))).all()


@pytest.mark.parametrize("rank", [-1, 16])
def test_a_rank_that_does_not_exist_is_refused(made: Made, rank: int) -> None:
    with pytest.raises(ClusterError, match=rf"a rank must be between 0 and 15, but got {rank}"):
        made("tree", 2).routes(0, rank)


@pytest.mark.parametrize("link", [-1, 10**9])
def test_a_link_that_does_not_exist_is_refused(made: Made, link: int) -> None:
    with pytest.raises(ClusterError, match=rf"the link must be between 0 and \d+, but got {link}"):
        made("tree", 2).link_name(link)


@pytest.mark.parametrize(
    ("factors", "slower"),
    [
        ({"inter": 0.25}, {"nic", "leaf", "spine"}),
        ({"intra": 0.25}, {"gpu"}),
        ({"leaf": 0.25}, {"leaf"}),
        ({}, set()),
    ],
)
def test_scaling_changes_the_bandwidth_of_the_links_named_and_no_other(
    made: Made, factors: dict[str, float], slower: set[str]
) -> None:
    before = made("tree", 14)
    after = before.scaled(factors)
    for tier in before.tiers:
        part = slice(tier.first, tier.first + tier.num_links)
        ratio = after.bandwidth_bytes_per_s[part] / before.bandwidth_bytes_per_s[part]
        assert np.allclose(ratio, 0.25 if tier.name in slower else 1.0)
    assert (after.latency_ns == before.latency_ns).all()


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"outer": 0.5}, "the links to scale must be one of intra, inter, gpu, nic on this cluster, but got 'outer'"),
        ({"inter": 0.0}, "the scale of inter links must be a positive number, but got 0.0"),
        ({"inter": float("nan")}, "the scale of inter links must be a positive number, but got nan"),
    ],
)
def test_a_scale_that_means_nothing_is_refused(made: Made, factors: dict[str, float], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        made("dgx1-v100", 2).scaled(factors)


def test_fewer_ranks_a_node_leave_gpus_empty(made: Made) -> None:
    topology = made("tree", 3, ranks_per_node=2, num_ranks=5)
    assert topology.node_of.tolist() == [0, 0, 1, 1, 2]
    assert topology.slot_of.tolist() == [0, 1, 0, 1, 0]
    assert topology.num_links == made("tree", 3).num_links


def test_a_hundred_thousand_gpus_take_no_time(made: Made) -> None:
    """12,288 nodes: 0.06 s on one core for the topology and 100,000 routes; a second is the most it may ever take."""
    start = time.process_time()
    topology = made("dgx-a100", 12_288)
    src, dst = np.random.default_rng(0).integers(0, topology.num_ranks, size=(2, 100_000))
    routes = topology.routes(src, dst)
    assert time.process_time() - start < 1
    assert topology.num_ranks == 98_304
    assert (routes[src != dst, 0] >= 0).all()
    held = [value.nbytes for value in vars(topology).values() if isinstance(value, np.ndarray)]
    assert sum(held) < 20 * 2**20


def test_the_picture_counts_every_node_once(made: Made) -> None:
    def count(branch: TopologyBranch, kind: str) -> int:
        inner = sum(count(child, kind) for child in branch.children)
        return branch.count * (inner + int(branch.kind == kind))

    for name, nodes in [*SHAPES, ("dgx-a100", 45), ("grand-teton-h100", 800)]:
        topology = made(name, nodes)
        tree = describe_topology(topology).tree
        assert count(tree, "node") == topology.num_nodes
        assert count(tree, "gpu") == topology.cluster.num_devices


def test_the_picture_draws_equal_neighbours_once(made: Made) -> None:
    tree = describe_topology(made("dgx-a100", 45)).tree
    assert [(child.kind, child.count, child.first) for child in tree.children] == [
        ("leaf", 2, 0),
        ("leaf", 1, 2),
    ]
    assert [child.children[0].count for child in tree.children] == [20, 5]


def test_the_picture_follows_the_scale(made: Made) -> None:
    plain, slow = made("tree", 14), made("tree", 14).scaled({"nic": 0.5})
    for drawn, rate in ((plain, 90.0), (slow, 45.0)):
        node = describe_topology(drawn).tree.children[0].children[0].children[0]
        assert node.kind == "node"
        assert node.gb_per_s == pytest.approx(rate)


def test_the_description_is_plain_data(made: Made) -> None:
    for name, nodes in SHAPES:
        described = asdict(describe_topology(made(name, nodes)))
        assert json.loads(json.dumps(described))["tiers"] == list(described["tiers"])
