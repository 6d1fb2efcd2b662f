"""A cluster: what fits on it, and what is said when something does not."""

import pytest

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
    with pytest.raises(
        ClusterError, match="must need at most the cluster's 4 nodes, but needs 8; raise --nproc-per-node"
    ):
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
