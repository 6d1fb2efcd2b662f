"""Ranks are where the run started them, also when nodes have more GPUs than ranks, or unequal ones."""

from pathlib import Path

import numpy as np
from tests.engine.building import Script, make_trace

from sandtable.cluster import load
from sandtable.engine import simulate
from sandtable.trace import Group, Trace

UNEQUAL = """
title = "two kinds"
source = "a test"
status = "nominal"

[[groups]]
machine = "dgx-a100"
num_nodes = 1

[[groups]]
machine = "rtx4090+25gbe"
num_nodes = 1
"""


def four_ranks(ranks_per_node: int) -> Trace:
    script = Script()
    for _ in range(2):
        script.op(2)
        script.wait(script.collective(2**24))
        script.step()
    world = Group("world", (0, 1, 2, 3))
    return make_trace({0: script}, classes={0: [0, 1, 2, 3]}, groups=(world,), ranks_per_node=ranks_per_node)


def test_two_ranks_a_node_use_the_network_and_four_do_not() -> None:
    cluster = load("dgx-a100", nodes=2)
    together, apart = (simulate(four_ranks(count), cluster) for count in (4, 2))
    assert apart.step_ns > together.step_ns
    assert np.unique(together.topology.node_of).tolist() == [0]
    assert apart.topology.node_of.tolist() == [0, 0, 1, 1]


def test_ranks_on_unequal_nodes_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(UNEQUAL, encoding="utf-8")
    timeline = simulate(four_ranks(2), load(path))
    assert [actor.ranks for actor in timeline.actors] == [(0, 1), (2, 3)]
