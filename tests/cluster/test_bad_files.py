"""Every malformed or impossible file is answered with the file, the key, the rule, the value and the remedy."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.machines import MACHINE, MIXED, RAILS, SITED, TREE

from sandtable.cluster import load
from sandtable.errors import ClusterError

Write = Callable[[str], Path]

KNOWN = "must be a known key"

MACHINES = [
    (
        'kind = "nvswitch"',
        'kind = "nvlnk"',
        "scale_up.kind must be 'nvswitch', 'nvlink', 'pcie' or 'host', but got 'nvlnk'",
    ),
    ("gb_per_s = 300", "gb_per_s = 0", "scale_up.gb_per_s must be greater than 0, but got 0"),
    ("gb_per_s = 300", "gb_per_s = -300", "scale_up.gb_per_s must be greater than 0, but got -300"),
    ("gb_per_s = 300", "gb_per_s = inf", "scale_up.gb_per_s must be a finite number, but got inf"),
    ("gb_per_s = 300", "gb_per_s = nan", "scale_up.gb_per_s must be a finite number, but got nan"),
    ("gb_per_s = 300", 'gb_per_s = "300"', "scale_up.gb_per_s must be a valid number, but got '300'; it is GB/s"),
    ("gb_per_s = 300", "gbit_per_s = 300", f"scale_up.gbit_per_s {KNOWN}"),
    ("gb_per_s = 300\n", "", "scale_up.gb_per_s must be given, but is missing; it is GB/s (10^9 bytes)"),
    ("latency_us = 1.0", "latency_us = -1", "scale_up.latency_us must be greater than or equal to 0, but got -1"),
    ("efficiency = 0.8", "efficiency = 1.2", "scale_up.efficiency must be less than or equal to 1, but got 1.2"),
    ("efficiency = 0.8", "efficiency = 0.0", "scale_up.efficiency must be greater than 0, but got 0.0"),
    (
        'kind = "nvswitch"',
        'kind = "nvlink"\nnvls = true',
        'scale_up.nvls must be false unless kind is "nvswitch", but got True; leave it out',
    ),
    (
        "efficiency = 0.8",
        "mesh = [[0, 1], [1, 0]]",
        "scale_up.mesh must be left out unless kind is \"nvlink\", but got 'a table'",
    ),
    (
        'status = "measured"',
        'status = "guessed"',
        "nics.status must be 'measured', 'fitted' or 'nominal', but got 'guessed'",
    ),
    ('source = "the box"\nstatus = "measured"', 'status = "measured"', "nics.source must be given, but is missing"),
    ("pcie_gb_per_s = 31.5", "pcie_gb_per_s = true", "host.pcie_gb_per_s must be a valid number, but got True"),
    ("cores = 64", "cores = 0", "host.cores must be greater than or equal to 1, but got 0"),
    ("cores = 64", "core = 64", f"host.core {KNOWN}; did you mean 'cores'?"),
    ("[nics]\ncount = 4", "[nics]\ncount = 0", "nics.count must be greater than or equal to 1, but got 0"),
    (
        "[nics]\ncount = 4",
        "[nics]\ncount = 9",
        "nics.count must be at most gpus_per_node (8), but got 9; a GPU uses one",
    ),
    ("gbit_per_s = 200", "gbit_per_s = 0.0", "nics.gbit_per_s must be greater than 0, but got 0.0"),
    ('transport = "rdma"', 'transport = "udp"', "nics.transport must be 'rdma' or 'tcp', but got 'udp'"),
    ("[nics]", "[nics]\ngpu_to_nic = [0, 1]", "nics.gpu_to_nic must be as long as gpus_per_node (8), but got [0, 1]"),
    (
        "[nics]",
        "[nics]\ngpu_to_nic = [0, 0, 1, 1, 2, 2, 3, 4]",
        "nics.gpu_to_nic must be numbers below count (4), but got 4; the first adapter is 0",
    ),
    (
        "[nics]",
        "[nics]\ngpu_to_nic = [0, 0, 1, 1, 2, 2, 3, -1]",
        "nics.gpu_to_nic.7 must be greater than or equal to 0, but got -1",
    ),
    ("[nics]", "[nic]", f"nic {KNOWN}; did you mean 'nics'?; known here: "),
    ("gpus_per_node = 8", "gpus_per_node = 5000", "gpus_per_node must be less than or equal to 1024, but got 5000"),
    ("gpus_per_node = 8", "gpus_per_node = 8.0", "gpus_per_node must be a valid integer, but got 8.0"),
    (
        "gpus_per_node = 8",
        "gpus_per_node = 8\nnum_nodes = 0",
        "num_nodes must be greater than or equal to 1, but got 0",
    ),
    ("gpus_per_node = 8", "gpus_per_node = 8\nnum_nodes = 2000000", "num_nodes must be less than or equal to 1000000"),
    (
        "gpus_per_node = 8",
        "gpus_per_node = 1000\nnum_nodes = 100000",
        "num_nodes must give at most 10,000,000 GPUs, but gives 100,000,000; take fewer nodes",
    ),
    (
        "gpus_per_node = 8",
        'gpus_per_node = 8\nplacement = "random"',
        'placement must be "node-major", "round-robin" or a list of node numbers, but got \'random\'',
    ),
    (
        "gpus_per_node = 8",
        "gpus_per_node = 8\nplacement = []",
        'placement must be "node-major", "round-robin" or a list',
    ),
    (
        "gpus_per_node = 8",
        "gpus_per_node = 8\nnum_nodes = 3\nplacement = [0, 3]",
        "placement must name nodes from 0 to 2, but names 3",
    ),
    (
        "gpus_per_node = 8",
        "gpus_per_node = 8\nnum_nodes = 3\nplacement = [1, 0, 1]",
        "placement must name each node once, but names 1 more than once",
    ),
    ("gpus_per_node = 8", "gpus_per_node = 8\nprice = 3", "price must be a table, but got 3; it is the table [price]"),
    (
        "[host]",
        '[price]\nusd_per_node_hour = -3\nsource = "a bill"\nstatus = "nominal"\n[host]',
        "price.usd_per_node_hour must be greater than 0, but got -3",
    ),
]

MESHES = [
    (
        "[[0, 1], [2, 0]]",
        "scale_up.mesh.0.1 must be equal to mesh.1.0 and 0 within a GPU, but got 1; links go both ways",
    ),
    ("[[1, 1], [1, 0]]", "scale_up.mesh.0.0 must be equal to mesh.0.0 and 0 within a GPU, but got 1"),
    ("[[0, 1], [1]]", "scale_up.mesh.1 must be as long as there are rows (2), but got [1]; give one number per GPU"),
    ("[[0, 0], [0, 0]]", "scale_up.mesh.0 must be more than zeros, but got [0, 0]"),
    ("[[0, 1], [1, 0]]", "scale_up.mesh must be as many rows as gpus_per_node (8), but got 2"),
    ("[[0, -1], [-1, 0]]", "scale_up.mesh.0.1 must be greater than or equal to 0, but got -1"),
]

FABRICS = [
    ("below = 4", "below = 0", "fabric.tiers.0.below must be greater than or equal to 1, but got 0; it is the nodes"),
    ("below = 4\n", "", "fabric.tiers.0.below must be given below the last tier, but got None; give the number"),
    (
        "oversubscription = 2.0",
        "oversubscription = 0",
        "fabric.tiers.0.oversubscription must be greater than 0, but got 0",
    ),
    (
        "oversubscription = 2.0",
        "oversubscription = 2.0\nuplink_gbit_per_s = 100",
        "fabric.tiers.0.uplink_gbit_per_s must be left out beside oversubscription, but got 100.0; keep one",
    ),
    (
        'status = "nominal"\n',
        'status = "nominal"\noversubscription = 3\n',
        "fabric.tiers.2.oversubscription must be left out in the last tier, but got 3.0; nothing is above it",
    ),
    (
        "uplink_gbit_per_s = 1000",
        "uplink_gb_per_s = 1000",
        f"fabric.tiers.1.uplink_gb_per_s {KNOWN}; did you mean 'uplink_gbit_per_s'?",
    ),
    ("rails = false", 'rails = "yes"', "fabric.rails must be a valid boolean, but got 'yes'"),
    ("[fabric]", "[fabric]\nsites = 3", "fabric.sites must be a valid list, but got 3"),
]

SITES = [
    ('name = "west"', 'name = "east"', "fabric.sites must be named differently, but got ['east', 'east']"),
    ("gbit_per_s = 10\n", "gbit_per_s = 0\n", "fabric.between_sites.gbit_per_s must be greater than 0, but got 0"),
    ("latency_ms = 15", "latency_us = 15", f"fabric.between_sites.latency_us {KNOWN}; did you mean 'latency_ms'?"),
    ("latency_ms = 15\n", "", "fabric.between_sites.latency_ms must be given, but is missing; it is milliseconds"),
    ("num_nodes = 2", "num_nodes = 0", "fabric.sites.1.num_nodes must be greater than or equal to 1, but got 0"),
    (
        "gpus_per_node = 8",
        "gpus_per_node = 8\nnum_nodes = 6",
        "fabric.sites must hold the cluster's 6 nodes together, but hold 5",
    ),
]

GROUPS = [
    (
        'machine = "dgx-a100"',
        'machine = "dgx-a10"',
        "groups.0.machine: unknown cluster 'dgx-a10'; did you mean 'dgx-a100'?",
    ),
    ('"rtx4090+25gbe"', '"rtx4090+26gbe"', "groups.1.machine: unknown network '26gbe'; did you mean '25gbe'?"),
    ("num_nodes = 2", "num_nodes = 0", "groups.0.num_nodes must be greater than or equal to 1, but got 0"),
    ("num_nodes = 2\n", "", "groups.0.num_nodes must be given, but is missing; it is the number of nodes of this kind"),
    ('machine = "dgx-a100"\n', "", "groups.0.machine must be given, but is missing; it is a machine such as"),
    ('machine = "dgx-a100"', "machine = 7", "groups.0.machine must be a valid string, but got 7"),
    (
        "gpus_per_node = 2",
        "gpus_per_node = 0",
        "groups.2.machine.gpus_per_node must be greater than or equal to 1, but got 0",
    ),
    ('"titan-x-pascal"', '"titan"', "groups.2.machine.device: unknown device 'titan'; "),
    ('title = "the old one"', 'titel = "the old one"', f"groups.2.machine.titel {KNOWN}; did you mean 'title'?"),
    ("[[groups]]", 'device = "l4"\n[[groups]]', f"device {KNOWN}"),
    (
        'machine = "dgx-a100"',
        'machine = "dgx-a100"\nnics = {count = 16, gbit_per_s = 1, latency_us = 1, transport = "tcp", '
        'source = "s", status = "nominal"}',
        "groups.0.nics.count must be at most gpus_per_node (8), but got 16",
    ),
    ("[[groups]]", "placement = [9]\n[[groups]]", "placement must name nodes from 0 to 5, but names 9"),
]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_text(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_text


def changed(text: str, old: str, new: str) -> str:
    """`text` with the last `old` replaced if it is there more than once in tables that follow, else the only one."""
    assert old in text
    head, found, tail = text.rpartition(old) if old.startswith("status") else text.partition(old)
    assert found
    return head + new + tail


def answer(path: Path) -> str:
    with pytest.raises(ClusterError) as caught:
        load(path)
    return str(caught.value)


@pytest.mark.parametrize(("old", "new", "message"), MACHINES)
def test_a_mistake_in_a_machine(write: Write, old: str, new: str, message: str) -> None:
    path = write(changed(MACHINE, old, new))
    assert f"{path}: {message}" in answer(path)


@pytest.mark.parametrize(("mesh", "message"), MESHES)
def test_a_mistake_in_a_mesh(write: Write, mesh: str, message: str) -> None:
    path = write(MACHINE.replace('kind = "nvswitch"', f'kind = "nvlink"\nmesh = {mesh}'))
    assert f"{path}: {message}" in answer(path)


@pytest.mark.parametrize(("old", "new", "message"), FABRICS)
def test_a_mistake_in_a_fabric(write: Write, old: str, new: str, message: str) -> None:
    path = write(changed(TREE, old, new))
    assert f"{path}: {message}" in answer(path)


@pytest.mark.parametrize(("old", "new", "message"), SITES)
def test_a_mistake_in_sites(write: Write, old: str, new: str, message: str) -> None:
    path = write(changed(SITED, old, new))
    assert f"{path}: {message}" in answer(path)


@pytest.mark.parametrize(("old", "new", "message"), GROUPS)
def test_a_mistake_in_groups(write: Write, old: str, new: str, message: str) -> None:
    path = write(changed(MIXED, old, new))
    assert f"{path}: {message}" in answer(path)


def test_a_site_alone_is_refused(write: Write) -> None:
    start, end = SITED.index('[[fabric.sites]]\nname = "west"'), SITED.index("[fabric.between_sites]")
    path = write(SITED[:start] + SITED[end:])
    assert f"{path}: fabric.sites must be at least two, but got ['east']; omit a single site" in answer(path)


def test_sites_need_a_link_between_them_and_the_link_needs_sites(write: Write) -> None:
    link = SITED.index("[fabric.between_sites]")
    path = write(SITED[:link])
    assert f"{path}: fabric.between_sites must be given with sites, but got None; add the table" in answer(path)
    path = write(SITED[: SITED.index("[[fabric.sites]]")] + SITED[link:])
    assert f"{path}: fabric.between_sites must be left out without sites" in answer(path)


def test_groups_must_be_tables(write: Write) -> None:
    path = write('title = "t"\nsource = "s"\nstatus = "nominal"\ngroups = 3\n')
    assert f"{path}: groups must be a valid list, but got 3; it is the tables [[groups]]" in answer(path)
    path = write('title = "t"\nsource = "s"\nstatus = "nominal"\ngroups = []\n')
    assert f"{path}: groups must " in answer(path)
    path = write('title = "t"\nsource = "s"\nstatus = "nominal"\ngroups = [3]\n')
    assert f"{path}: groups.0 must be a table, but got 3" in answer(path)


def test_a_group_of_groups_is_refused(write: Write, tmp_path: Path) -> None:
    (tmp_path / "inner.toml").write_text(MIXED, encoding="utf-8")
    path = write(MIXED.replace('"dgx-a100"', '"inner.toml"'))
    assert f"{path}: groups.0.machine: 'inner.toml' must be one kind of node, but has groups itself" in answer(path)


def test_a_fabric_too_small_for_the_nodes_is_refused(write: Write) -> None:
    path = write(
        TREE.replace('[[fabric.tiers]]\nsource = "the plan"', '[[fabric.tiers]]\nbelow = 2\nsource = "the plan"')
    )
    assert load(path, nodes=24).num_nodes == 24
    with pytest.raises(
        ClusterError, match=r"fabric\.tiers must join at least the 25 nodes of a site, but join 24; raise"
    ):
        load(path, nodes=25)


def test_rails_need_nvlink_and_as_many_adapters_everywhere(write: Write) -> None:
    path = write(RAILS.replace('kind = "nvswitch"', 'kind = "pcie"'))
    assert f"{path}: fabric.rails must be false unless GPUs have NVLink to change rails" in answer(path)
    path = write(MIXED + '\n[fabric]\nrails = true\nsource = "s"\nstatus = "nominal"\n')
    assert (
        f"{path}: fabric.rails must be false unless all nodes have the same number of adapters, but they have [1, 8]"
        in answer(path)
    )


def test_a_network_cannot_be_put_on_groups(write: Write) -> None:
    path = write(MIXED)
    with pytest.raises(ClusterError, match="groups must not be combined with a network"):
        load(f"{path}+25gbe")


def test_every_mistake_of_nested_tables_is_reported_at_once(write: Write) -> None:
    text = (
        TREE.replace("gb_per_s = 300", "gb_per_s = 0")
        .replace("below = 3", "below = 0")
        .replace("count = 4", "count = 0")
    )
    lines = answer(write(text)).splitlines()
    assert [line.split(": ")[1].split(" ")[0] for line in lines] == [
        "scale_up.gb_per_s",
        "nics.count",
        "fabric.tiers.1.below",
    ]
