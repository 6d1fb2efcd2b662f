"""A cluster: what fits on it, and what is said when something does not."""

from pathlib import Path

import pytest
from tests.cluster.machines import TREE

from sandtable.cluster import load
from sandtable.errors import ClusterError


@pytest.mark.parametrize(("world_size", "processes_per_node"), [(32, 8), (31, 8), (4, 1), (1, 1)])
def test_ranks_that_fit_are_accepted(world_size: int, processes_per_node: int) -> None:
    load("dgx-a100", nodes=4).require(world_size, processes_per_node=processes_per_node)


def test_a_world_too_large_says_how_many_nodes_it_needs() -> None:
    with pytest.raises(ClusterError) as caught:
        load("dgx-a100", nodes=4).require(48, processes_per_node=8)
    assert str(caught.value) == (
        "world size 48 must be at most the cluster's 32 GPUs (4 nodes x 8); add nodes with --nnodes 6"
    )


def test_a_world_spread_over_more_nodes_than_there_are_is_refused() -> None:
    with pytest.raises(ClusterError, match="must fit on the cluster's 4 nodes, but needs 8; raise --nproc-per-node"):
        load("dgx-a100", nodes=4).require(32, processes_per_node=4)


def test_one_node_is_not_called_nodes() -> None:
    with pytest.raises(ClusterError, match=r"\(1 node x 8\); add nodes with --nnodes 2"):
        load("dgx-a100").require(9, processes_per_node=8)


def test_more_processes_a_node_than_gpus_is_refused() -> None:
    with pytest.raises(
        ClusterError, match=r"processes per node \(16\) must be at most the 8 GPUs of a node of 'dgx-a100'"
    ):
        load("dgx-a100", nodes=4).require(16, processes_per_node=16)
    load("dgx2-v100").require(16, processes_per_node=16)


def test_a_resized_cluster_is_the_one_loaded_with_that_many_nodes() -> None:
    assert load("dgx-a100").with_nodes(384) == load("dgx-a100", nodes=384)
    assert load("dgx-a100", nodes=384).with_nodes(2) == load("dgx-a100", nodes=2)
    assert load("selene", nodes=2).with_nodes(4) == load("selene", nodes=4)


def test_a_cluster_grows_no_further_than_its_file_allows() -> None:
    with pytest.raises(ClusterError, match="must be at most 560, the number in selene; try --nnodes 560"):
        load("selene", nodes=2).with_nodes(561)


def test_a_cluster_remembers_the_file_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(TREE, encoding="utf-8")
    assert load(file).source_file == file
    assert load("dgx-a100").source_file is None
