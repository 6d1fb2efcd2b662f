"""The book of groups: one order of all groups that is every rank's own."""

from sandtable.vgpu.group_book import Chunk, GroupBook


def test_groups_told_to_their_members_only_stand_where_their_members_made_them() -> None:
    book = GroupBook(2)
    book.announce(0, Chunk.of([("world", (0, 1)), ("alone", (0,)), ("later", (0, 1))]))
    book.announce(1, Chunk.of([("world", (0, 1)), ("alone", (1,)), ("later", (0, 1))]))
    order = book.in_order()
    for rank in (0, 1):
        assert [entry for entry in order if rank in book.members[entry].tolist()] == list(book.own(rank))


def test_without_a_common_order_the_first_announcement_counts() -> None:
    book = GroupBook(3)
    book.announce(0, Chunk.of([("world", (0, 1, 2)), ("left", (0, 1)), ("right", (0, 1, 2))]))
    book.announce(1, Chunk.of([("world", (0, 1, 2)), ("right", (0, 1, 2)), ("left", (0, 1))]))
    assert book.in_order() == [0, 1, 2]


def test_a_group_that_a_captured_rank_did_not_see_made_is_private() -> None:
    book = GroupBook(4)
    everywhere = [("world", (0, 1, 2, 3)), ("left", (0, 1)), ("right", (2, 3))]
    for rank in (0, 2):
        book.announce(rank, Chunk.of(everywhere))
    assert not book.has_private()
    book.announce(0, Chunk.of([("own", (0, 1))]))
    assert book.has_private()
