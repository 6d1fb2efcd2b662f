"""The registry of groups: one order of all groups that is every rank's own."""

from sandtable.vgpu.call_logs import group_name
from sandtable.vgpu.group_registry import UNNAMED_GROUP, GroupRegistry
from sandtable.vgpu.protocol import GroupsMade


def test_groups_told_to_their_members_only_stand_where_their_members_made_them() -> None:
    registry = GroupRegistry(2)
    registry.announce(0, GroupsMade.of([("world", (0, 1)), ("alone", (0,)), ("later", (0, 1))]))
    registry.announce(1, GroupsMade.of([("world", (0, 1)), ("alone", (1,)), ("later", (0, 1))]))
    order = registry.in_order()
    for rank in (0, 1):
        assert [entry for entry in order if rank in registry.members[entry].tolist()] == list(registry.own(rank))


def test_without_a_common_order_the_first_announcement_counts() -> None:
    registry = GroupRegistry(3)
    registry.announce(0, GroupsMade.of([("world", (0, 1, 2)), ("left", (0, 1)), ("right", (0, 1, 2))]))
    registry.announce(1, GroupsMade.of([("world", (0, 1, 2)), ("right", (0, 1, 2)), ("left", (0, 1))]))
    assert registry.in_order() == [0, 1, 2]


def test_a_group_that_a_captured_rank_did_not_see_made_is_private() -> None:
    registry = GroupRegistry(4)
    everywhere = [("world", (0, 1, 2, 3)), ("left", (0, 1)), ("right", (2, 3))]
    for rank in (0, 2):
        registry.announce(rank, GroupsMade.of(everywhere))
    assert not registry.has_private()
    registry.announce(0, GroupsMade.of([("own", (0, 1))]))
    assert registry.has_private()


def test_a_message_names_a_group_by_the_scripts_name_for_it_else_by_its_ranks() -> None:
    registry = GroupRegistry(4)
    registry.announce(0, GroupsMade.of([("world", (0, 1, 2, 3)), ("dp", (0, 2)), (UNNAMED_GROUP, (0, 1, 3))]))
    assert group_name(registry, 0) == "the world group (4 ranks)"
    assert group_name(registry, 1) == "group 'dp' (2 ranks)"
    assert group_name(registry, 2) == "the group of ranks 0, 1, 3"
