"""The picture of the cluster: every node and switch once, each with the load of its own links."""

import numpy as np
import pytest
from tests.report.conftest import Rehearsal

from sandtable.cluster import Cluster, load
from sandtable.engine import LinkLoads, Timeline, simulate
from sandtable.report.picture import draw_picture


def with_loads(rehearsal: Rehearsal, cluster: Cluster) -> Timeline:
    """A timeline in which the load of a link is its number, so that each can be told from all others."""
    timeline = simulate(rehearsal.trace, cluster)
    numbers = np.arange(timeline.topology.num_links) / timeline.topology.num_links
    timeline.__dict__["link_loads"] = LinkLoads(bytes_carried=numbers, utilisation=numbers)
    return timeline


@pytest.mark.parametrize(("name", "nodes"), [("dgx-a100", 2), ("dgx-a100", 45), ("rtx4090", 4), ("dgx-h100", 100)])
def test_boxes_hold_the_load_of_the_links_that_are_named_after_them(
    rehearsal: Rehearsal, name: str, nodes: int
) -> None:
    timeline = with_loads(rehearsal, load(name, nodes=nodes))
    picture = draw_picture(timeline)
    topology = timeline.topology
    by_name = {topology.link_name(k): float(timeline.link_loads.utilisation[k]) for k in range(topology.num_links)}
    assert [box.node for box in picture.boxes] == list(range(nodes))
    for box in picture.boxes:
        for tier in ("gpu", "nic"):
            for unit, value in enumerate((box.links or {}).get(tier, [])):
                assert value == pytest.approx(by_name[f"node {box.node} {tier} {unit} in"], abs=1e-4)
    for switch in picture.switches:
        if len(switch.links) == 1:
            assert switch.links[0] == pytest.approx(by_name[f"{switch.name} in"], abs=1e-4)
        for rail, value in enumerate(switch.links if len(switch.links) > 1 else []):
            assert value == pytest.approx(by_name[f"{switch.name} rail {rail} in"], abs=1e-4)


def test_nodes_without_ranks_are_marked(rehearsal: Rehearsal) -> None:
    picture = draw_picture(with_loads(rehearsal, load("dgx-a100", nodes=5)))
    assert [box.used for box in picture.boxes] == [True, True, False, False, False]


def test_a_huge_cluster_is_drawn_with_several_nodes_a_box(rehearsal: Rehearsal) -> None:
    picture = draw_picture(with_loads(rehearsal, load("dgx-a100", nodes=12_288)))
    assert picture.num_nodes == 12_288
    assert picture.nodes_per_box == 6
    assert sum(box.count for box in picture.boxes) == 12_288
    assert all(box.count <= 6 for box in picture.boxes)
    assert len({box.above for box in picture.boxes}) == 615, "a leaf switch for each 20 nodes, none of them shared"
    assert picture.boxes[0].links is None
