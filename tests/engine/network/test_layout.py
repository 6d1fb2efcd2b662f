"""Where the members of groups sit."""

import numpy as np
import pytest

from sandtable.engine.network.layout import GroupLayout
from sandtable.errors import ClusterError

NODE_OF = np.arange(16) // 4
SLOT_OF = np.arange(16) % 4


def layout(groups) -> GroupLayout:
    return GroupLayout.of(groups, node_of=NODE_OF, slot_of=SLOT_OF)


def test_members_are_lined_up_node_by_node_and_by_slot():
    assert layout([[9, 2, 8, 1]]).ranks.tolist() == [1, 2, 8, 9]


def test_runs_say_which_members_share_a_node():
    spread = layout([[0, 1, 4, 5], [2, 3, 6, 10]])
    assert spread.run_start.tolist() == [0, 2, 4, 6, 7]
    assert spread.run_length.tolist() == [2, 2, 2, 1, 1]
    assert spread.num_nodes.tolist() == [2, 3]
    assert spread.local.tolist() == [0, 1, 0, 1, 0, 1, 0, 0]


def test_a_group_has_as_many_rails_as_its_emptiest_node_has_members():
    spread = layout([[0, 1, 4, 5], [2, 3, 6, 10]])
    assert spread.num_rails.tolist() == [2, 1]
    assert spread.ranks[spread.rails()].tolist() == [0, 1, 4, 5, 2, 6, 10]


def test_the_neighbour_of_the_last_member_on_a_node_is_the_first():
    spread = layout([[0, 1, 2, 4]])
    assert spread.ranks[spread.next_local()].tolist() == [1, 2, 0, 4]


@pytest.mark.parametrize("groups", [[[0, 16]], [[-1, 0]]])
def test_a_rank_that_does_not_exist_is_refused(groups):
    with pytest.raises(ClusterError, match="from 0 to 15"):
        layout(groups)


def test_a_rank_listed_twice_is_refused():
    with pytest.raises(ClusterError, match="list every rank once"):
        layout([[0, 1, 1]])


@pytest.mark.parametrize("groups", [[0, 1], [[]], [[0.5, 1.0]]])
def test_groups_that_are_no_table_of_ranks_are_refused(groups):
    with pytest.raises(ClusterError, match="one row per group"):
        layout(groups)
