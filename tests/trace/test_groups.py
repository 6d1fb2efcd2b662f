"""Groups: every rank finds its own among thousands."""

import time

import pytest

from sandtable.trace import Group, GroupTable

GROUPS = [Group("world", (0, 1, 2, 3)), Group("odd", (3, 1)), Group("even", (0, 2)), Group("again", (1, 3))]


def test_a_table_gives_back_the_groups_in_order_with_members_in_their_positions():
    table = GroupTable(GROUPS)
    assert list(table) == GROUPS
    assert table[-1] == GROUPS[-1]
    assert table[1:3] == (GROUPS[1], GROUPS[2])
    with pytest.raises(IndexError):
        table[4]


def test_groups_of_a_rank_come_in_creation_order():
    table = GroupTable(GROUPS)
    assert table.containing(1).tolist() == [0, 1, 3]
    assert table.containing(2).tolist() == [0, 2]
    assert table.containing(9).tolist() == []


def test_twelve_thousand_ranks_in_thousands_of_groups_are_indexed_in_milliseconds():
    tp, pp, dp = 8, 16, 96
    world = tp * pp * dp
    groups = [Group("world", tuple(range(world)))]
    groups += [Group(f"tp{i}", tuple(range(i * tp, i * tp + tp))) for i in range(world // tp)]
    groups += [Group(f"dp{i}", tuple(range(i, world, world // dp))) for i in range(world // dp)]
    stride = world // pp
    groups += [Group(f"pp{i}", tuple(range(i, world, stride))) for i in range(stride)]
    table = GroupTable(groups)
    start = time.perf_counter()
    assert [table[int(k)].size for k in table.containing(world - 1)] == [world, tp, dp, pp]
    assert time.perf_counter() - start < 0.1
