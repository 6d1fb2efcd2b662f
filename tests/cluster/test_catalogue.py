"""The catalogue: every entry is sound, and every mistake is answered with the rule, the value and the remedy."""

import pickle
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from sandtable import cluster
from sandtable.cluster import Cluster, device_names, load, load_device, names
from sandtable.errors import ClusterError
from sandtable.units import GIB

CATALOGUE = files("sandtable.cluster.catalogue")
DEVICE = (CATALOGUE / "devices" / "a100-sxm4-80gb.toml").read_text(encoding="utf-8")
MACHINE = """
title = "two in a box"
gpus_per_node = 2
device = "rtx4090"
source = "the box"
status = "nominal"
"""


@pytest.fixture
def write(tmp_path: Path):
    """Write a machine file and give back its path."""

    def write_text(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_text


@pytest.mark.parametrize("name", names())
def test_every_machine_loads(name: str) -> None:
    loaded = load(name)
    assert loaded.name == name
    assert loaded.num_nodes >= 1
    assert loaded.num_devices == loaded.num_nodes * loaded.gpus_per_node
    assert load(name, nodes=1).num_devices == loaded.gpus_per_node >= 1


@pytest.mark.parametrize("name", [name for name in device_names() if load_device(name).vendor != "cpu"])
def test_every_gpu_is_plausible(name: str) -> None:
    device = load_device(name)
    assert device.id == name
    assert 8 * GIB <= device.memory_bytes <= 300 * GIB
    assert 100e9 <= device.memory_bandwidth_bytes_per_s <= 10e12
    assert 1e12 <= device.vector.float32 <= device.matmul.float32 <= 1e15
    assert device.shared_memory_per_block_bytes <= device.shared_memory_per_block_optin_bytes
    assert device.shared_memory_per_block_optin_bytes <= device.shared_memory_per_sm_bytes
    assert device.warp_size == (64 if device.vendor == "amd" else 32)


@pytest.mark.parametrize("name", device_names())
def test_no_device_measures_faster_than_its_peak(name: str) -> None:
    device = load_device(name)
    assert device.measured_matmul.bfloat16 <= device.matmul.bfloat16
    assert device.measured_matmul.float8 <= device.matmul.float8


@pytest.mark.parametrize("name", [name for name in device_names() if name.endswith("gb")])
def test_memory_is_what_the_box_says_less_a_small_reserve(name: str) -> None:
    """The size in the catalogue's own name (a100-sxm4-80gb) is the box's; torch shows 1 to 7 % less."""
    box_gib = int(name.rpartition("-")[2].removesuffix("gb"))
    assert 0.93 * box_gib <= load_device(name).memory_bytes / GIB < box_gib


@pytest.mark.parametrize("name", device_names())
def test_every_table_of_a_device_names_its_source_and_status(name: str) -> None:
    entry = tomllib.loads((CATALOGUE / "devices" / f"{name}.toml").read_text(encoding="utf-8"))
    tables = {key: value for key, value in entry.items() if isinstance(value, dict)}
    assert {"properties", "memory", "bandwidth", "matmul", "vector"} <= set(tables)
    efficiency = ("gemm", "attention", "convolution", "streaming", "host")
    facts = [table for key, table in tables.items() if key not in efficiency]
    shares = [tables[key] for key in efficiency if key in tables]
    assert all(table["source"] and table["status"] in ("measured", "nominal") for table in facts)
    assert all(table["source"] and table["status"] in ("fitted", "nominal") for table in shares)


def test_a_known_device_says_what_torch_would_say() -> None:
    device = load_device("a100-sxm4-80gb")
    assert device.name == "NVIDIA A100-SXM4-80GB"
    assert (device.major, device.minor) == device.capability == (8, 0)
    assert device.num_sms == 108
    assert device.l2_bytes == 40 * 2**20
    assert device.max_threads_per_sm == 2048
    assert round(device.memory_bytes / GIB, 2) == 79.25
    assert device.memory_is_measured
    assert device.matmul.bfloat16 == 312 * 10**12
    assert device.matmul.float8 == 0
    assert device.memory_bandwidth_bytes_per_s == 2039 * 10**9


def test_a_cluster_has_the_nodes_asked_for() -> None:
    loaded = load("dgx-a100", nodes=384)
    assert (loaded.num_nodes, loaded.gpus_per_node, loaded.num_devices) == (384, 8, 3072)
    assert loaded.device.name == "NVIDIA A100-SXM4-80GB"


def test_a_cluster_survives_pickling_and_can_be_a_key() -> None:
    loaded = load("mi300x", nodes=2)
    assert pickle.loads(pickle.dumps(loaded)) == loaded
    assert {loaded: 1}[load("mi300x", nodes=2)] == 1


def test_unknown_cluster_lists_the_known_and_guesses() -> None:
    with pytest.raises(ClusterError, match="unknown cluster 'dgx_a100'; did you mean 'dgx-a100'") as caught:
        load("dgx_a100")
    assert all(name in str(caught.value) for name in names())
    assert ".toml" in str(caught.value)


def test_unknown_cluster_far_from_any_gets_no_guess() -> None:
    with pytest.raises(ClusterError) as caught:
        load("zzzzzz")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", ["../devices/a10", "DGX-A100", ""])
def test_only_exact_names_are_known(name: str) -> None:
    with pytest.raises(ClusterError, match="unknown cluster"):
        load(name)


def test_unknown_device_guesses() -> None:
    with pytest.raises(ClusterError, match="unknown device 'rtx409'; did you mean 'rtx4090'"):
        load_device("rtx409")


@pytest.mark.parametrize("nodes", [0, -3])
def test_number_of_nodes_must_be_positive(nodes: int) -> None:
    with pytest.raises(ClusterError, match=rf"number of nodes \({nodes}\) must be at least 1"):
        load("dgx-a100", nodes=nodes)


def test_a_users_own_file_loads_by_path(write) -> None:
    path = write(MACHINE)
    loaded = load(path, nodes=3)
    assert (loaded.name, loaded.title, loaded.num_devices) == ("mine", "two in a box", 6)
    assert load(str(path)) == load(path)
    assert loaded.device == load_device("rtx4090")


def test_a_users_own_file_may_say_how_many_nodes(write) -> None:
    path = write(MACHINE + "num_nodes = 4\n")
    assert load(path).num_nodes == 4
    assert load(path, nodes=2).num_nodes == 2
    with pytest.raises(ClusterError, match=r"nodes \(5\) must be at most 4, the number in .*; try --nnodes 4"):
        load(path, nodes=5)


def test_a_users_own_file_may_describe_its_device(write) -> None:
    table = DEVICE.replace("[", "[device.").replace("[device.8, 0]", "[8, 0]")
    machine = MACHINE.replace('device = "rtx4090"\n', "")
    loaded = load(write(f"{machine}\n[device]\n{table}"))
    assert loaded.device.id == "mine.device"
    assert loaded.device.name == "NVIDIA A100-SXM4-80GB"


def test_a_mistake_in_a_described_device_names_the_whole_key(write) -> None:
    table = DEVICE.replace("[", "[device.").replace("[device.8, 0]", "[8, 0]").replace("num_sms = 108", "num_sms = 0")
    machine = MACHINE.replace('device = "rtx4090"\n', "")
    with pytest.raises(ClusterError, match=r"mine\.toml: device\.properties\.num_sms must be .* but got 0"):
        load(write(f"{machine}\n[device]\n{table}"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "gpus_per_node = 2",
            "gpus_per_node = 0",
            "gpus_per_node must be greater than or equal to 1, but got 0; it is ",
        ),
        ("gpus_per_node = 2", 'gpus_per_node = "2"', "gpus_per_node must be a valid integer, but got '2'; it is "),
        ("gpus_per_node = 2", "", "gpus_per_node must be given, but is missing; it is the number of devices"),
        ("gpus_per_node", "gpus_per_nod", "gpus_per_nod must be a known key; did you mean 'gpus_per_node'?"),
        ('"nominal"', '"guessed"', "status must be 'measured', 'fitted' or 'nominal', but got 'guessed'"),
        ('"rtx4090"', '"rtx409"', "device: unknown device 'rtx409'; did you mean 'rtx4090'?"),
        ('"rtx4090"', "4090", "device must be a valid string, but got 4090; it is "),
        ("gpus_per_node = 2", "gpus_per_node 2", "the file must be valid TOML, but: "),
    ],
)
def test_a_mistake_in_a_file_names_file_key_rule_value_and_remedy(write, old: str, new: str, message: str) -> None:
    assert old in MACHINE
    path = write(MACHINE.replace(old, new))
    with pytest.raises(ClusterError) as caught:
        load(path)
    assert f"{path}: {message}" in str(caught.value)


def test_every_mistake_of_a_file_is_reported_at_once(write) -> None:
    with pytest.raises(ClusterError) as caught:
        load(write('title = ""\n'))
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[1].split(" ")[0] for line in lines] == [
        "source",
        "status",
        "title",
        "gpus_per_node",
        "device",
    ]


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"none\.toml: the file must exist"):
        load(tmp_path / "none.toml")


def test_a_file_that_is_not_text_says_so(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ClusterError, match="must be readable UTF-8 text"):
        load(path)


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    path = tmp_path / "folder.toml"
    path.mkdir()
    with pytest.raises(ClusterError, match=r"folder\.toml: the file must be"):
        load(path)


def test_everything_public_is_listed_in_order() -> None:
    assert cluster.__all__ == sorted(cluster.__all__)
    assert all(hasattr(cluster, name) for name in cluster.__all__)
    assert isinstance(load("a10"), Cluster)
