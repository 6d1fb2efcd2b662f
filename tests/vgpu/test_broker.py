"""The answers that a captured rank gets about the others, most of which do not run."""

import time
from array import array
from collections.abc import Sequence

import numpy as np
import pytest
from tests.vgpu.meshes import Named, mesh_groups

from sandtable.errors import MismatchError
from sandtable.vgpu.broker import Broker
from sandtable.vgpu.classes import stand_ins
from sandtable.vgpu.group_registry import GroupRegistry
from sandtable.vgpu.protocol import Call, GatherAnswered, GroupsMade, ReceiveAnswered, StopOrdered

PLAIN = (-1, 0, -1, 4, 4)
"""The rest of a logged call: no peer, no tag, no root, and for reduce operator and splits the text of number 4."""


class Stage:
    """A broker with its registry, and captured ranks that announce the same groups."""

    def __init__(self, world_size: int, groups: Sequence[Named], *ranks: int) -> None:
        self.registry = GroupRegistry(world_size)
        self.primaries: list[int] = []
        self.broker = Broker(self.registry, lambda: stand_ins(self.registry, self.primaries))
        self.groups = groups
        self.tickets = 0
        for rank in ranks:
            self.enter(rank)

    def enter(self, rank: int, *, is_primary: bool = True) -> None:
        if is_primary and rank not in self.primaries:
            self.primaries.append(rank)
        self.broker.admit(rank, is_primary=is_primary)
        self.broker.announce(rank, GroupsMade.of(self.groups))

    def place(self, rank: int, name: str) -> int:
        return [name for name, ranks in self.groups if rank in ranks].index(name)

    def gather(self, rank: int, name: str, payload: bytes | None, *, seq: int = 0, wait: bool = True, **fields) -> int:
        self.tickets += wait
        self.broker.gather(rank, self.tickets if wait else 0, call(self.place(rank, name), seq, **fields), payload)
        return self.tickets

    def answers(self) -> dict[int, list[bytes | None] | bytes | str | None]:
        return {reply.rank: opened(reply.answer) for reply in self.broker.take_replies()}


def call(group: int, seq: int, *, op: str = "all_gather", dtype: str = "uint8", num_bytes: int = 1, **fields) -> Call:
    return Call(group=group, seq=seq, op=op, dtype=dtype, num_bytes=num_bytes, **fields)


def opened(answer):
    match answer:
        case GatherAnswered(table=table, sources=sources):
            return [table[source] for source in array("i", sources)]
        case ReceiveAnswered(payload=payload):
            return payload
        case StopOrdered(reason=reason):
            return reason
    raise AssertionError(answer)


def test_a_rank_that_runs_alone_is_answered_with_its_own_payload():
    stage = Stage(8, mesh_groups(dp=4, tp=2), 0)
    stage.gather(0, "world", b"x")
    assert stage.answers() == {0: [b"x"] * 8}


def test_captured_members_wait_for_each_other_and_get_what_each_put_in():
    stage = Stage(2, mesh_groups(pp=2), 0, 1)
    stage.gather(0, "pp", b"a")
    assert stage.answers() == {}
    stage.gather(1, "pp", b"b")
    assert stage.answers() == {0: [b"a", b"b"], 1: [b"a", b"b"]}


def test_stand_ins_answer_for_the_members_of_their_own_stage():
    stage = Stage(8, mesh_groups(pp=2, dp=4), 0, 4)
    stage.gather(0, "world", b"a")
    stage.gather(4, "world", b"b")
    assert stage.answers()[4] == [b"a"] * 4 + [b"b"] * 4


def test_a_member_without_a_payload_does_not_wait_and_counts_as_unknown():
    stage = Stage(2, mesh_groups(pp=2), 0, 1)
    stage.gather(0, "pp", None, wait=False)
    assert stage.answers() == {}
    stage.gather(1, "pp", b"b")
    assert stage.answers() == {1: [None, b"b"]}


def test_a_sample_is_answered_from_what_was_posted_before():
    stage = Stage(8, mesh_groups(dp=4, tp=2), 0)
    stage.gather(0, "dp", b"first")
    stage.gather(0, "tp", b"inner")
    stage.broker.end(0, "steps")
    stage.answers()
    stage.enter(7, is_primary=False)
    stage.gather(7, "dp", b"mine")
    assert stage.answers() == {7: [b"first"] * 3 + [b"mine"]}
    stage.gather(7, "tp", b"own")
    assert stage.answers() == {7: [b"inner", b"own"]}


def test_a_sample_that_calls_more_than_its_stand_in_gets_its_own_payload():
    stage = Stage(4, mesh_groups(dp=4), 0)
    stage.broker.end(0, "steps")
    stage.enter(3, is_primary=False)
    groups = [("world", (0, 1, 2, 3)), ("pair", (2, 3))]
    stage.groups = [*mesh_groups(dp=4), groups[1]]
    stage.broker.announce(3, GroupsMade.of([groups[1]]))
    stage.gather(3, "pair", b"z")
    assert stage.answers() == {3: [b"z", b"z"]}


def test_stand_ins_are_found_through_the_place_of_the_group_in_their_own_list():
    # Rank 0 has one group more (x) before dp than rank 1 has, so dp is at different places of their lists.
    groups = [("world", (0, 1, 2, 3)), ("x", (0, 2)), ("dp", (0, 1)), ("dp", (2, 3))]
    stage = Stage(4, groups, 0, 1)
    stage.gather(0, "dp", b"a")
    stage.gather(1, "dp", b"b")
    assert stage.answers() == {0: [b"a", b"b"], 1: [b"a", b"b"]}


def test_groups_with_the_same_members_are_told_apart():
    groups = [("world", (0, 1)), ("a", (0, 1)), ("b", (0, 1))]
    stage = Stage(2, groups, 0, 1)
    stage.gather(0, "a", b"a0")
    stage.gather(1, "b", b"b1")
    assert stage.answers() == {}
    stage.gather(1, "a", b"a1")
    assert stage.answers() == {0: [b"a0", b"a1"], 1: [b"a0", b"a1"]}


def test_a_member_that_has_yet_to_make_the_group_is_waited_for():
    stage = Stage(2, [("world", (0, 1))], 0)
    stage.primaries.append(1)
    stage.broker.admit(1, is_primary=True)
    stage.gather(0, "world", b"a")
    assert stage.answers() == {}
    stage.broker.announce(1, GroupsMade.of([("world", (0, 1))]))
    stage.gather(1, "world", b"b", wait=False)
    assert stage.answers() == {0: [b"a", b"b"]}


def test_what_is_sent_arrives_whether_the_receiver_asks_before_or_after():
    stage = Stage(2, mesh_groups(pp=2), 0, 1)
    stage.broker.send(0, call(1, 0, op="send", peer=1), b"early")
    stage.broker.receive(1, 1, call(1, 0, op="recv", peer=0))
    assert stage.answers() == {1: b"early"}
    stage.broker.receive(1, 2, call(1, 1, op="recv", peer=0))
    assert stage.answers() == {}
    stage.broker.send(0, call(1, 1, op="send", peer=1), b"late")
    assert stage.answers() == {1: b"late"}


def test_a_sample_receives_what_the_stand_in_of_its_peer_sent():
    # Pipelines (0, 4), (1, 5), ...: rank 7's peer is 3, for which rank 0 stands in; 0 sent to 4 what 3 would to 7.
    stage = Stage(8, mesh_groups(pp=2, dp=4), 0, 4)
    stage.broker.send(0, call(1, 0, op="send", peer=4), b"shape")
    stage.broker.end(0, "steps")
    stage.broker.end(4, "steps")
    stage.enter(7, is_primary=False)
    stage.broker.receive(7, 9, call(1, 0, op="recv", peer=3))
    assert stage.answers() == {7: b"shape"}
    stage.broker.receive(7, 10, call(1, 1, op="recv", peer=3))
    assert stage.answers() == {7: None}


def test_different_operations_in_one_place_are_reported_with_both_lines():
    stage = Stage(2, mesh_groups(pp=2), 0, 1)
    stage.gather(0, "pp", b"a", op="all_gather", file="train.py", line=31)
    with pytest.raises(MismatchError) as error:
        stage.gather(1, "pp", b"b", op="broadcast", file="train.py", line=40)
    text = str(error.value)
    assert "rank 0 calls all_gather of 1 byte uint8 at train.py:31" in text
    assert "rank 1 calls broadcast of 1 byte uint8 at train.py:40" in text
    assert "group 'pp' (2 ranks)" in text


@pytest.mark.parametrize("other", [{"dtype": "int8"}, {"num_bytes": 2}])
def test_different_types_and_sizes_are_mismatches(other):
    stage = Stage(2, mesh_groups(pp=2), 0, 1)
    stage.gather(0, "pp", b"a")
    with pytest.raises(MismatchError):
        stage.gather(1, "pp", b"b", **other)


def test_sizes_that_may_differ_are_no_mismatch():
    stage = Stage(2, mesh_groups(pp=2), 0, 1)
    stage.gather(0, "pp", b"a", num_bytes=-1)
    stage.gather(1, "pp", b"bbb", num_bytes=3)
    assert stage.answers()[0] == [b"a", b"bbb"]


def test_a_receive_of_another_size_than_was_sent_is_a_mismatch():
    stage = Stage(2, mesh_groups(pp=2), 0, 1)
    stage.broker.send(0, call(1, 0, op="send", peer=1, num_bytes=8), b"8bytes..")
    with pytest.raises(MismatchError, match="recv of 4 bytes"):
        stage.broker.receive(1, 1, call(1, 0, op="recv", peer=0, num_bytes=4))


def test_ranks_that_wait_for_each_other_are_a_deadlock():
    stage = Stage(2, mesh_groups(pp=2), 0, 1)
    stage.gather(0, "pp", b"a", file="train.py", line=1)
    assert not stage.broker.is_stuck()
    stage.gather(1, "world", b"b", file="train.py", line=2)
    assert stage.broker.is_stuck()
    with pytest.raises(MismatchError) as error:
        stage.broker.break_deadlock()
    where = "in all_gather of 1 byte uint8, call 0 of"
    assert f"rank 0 waits for rank 1 {where} group 'pp' (2 ranks) at train.py:1" in str(error.value)
    assert f"rank 1 waits for rank 0 {where} the world group (2 ranks) at train.py:2" in str(error.value)


def test_a_deadlock_on_stand_ins_alone_is_resolved_without_them():
    # Rank 0 stands in for rank 1, but has no group like "mixed"; it waits for rank 2, which waits for rank 1.
    groups: list[Named] = [("world", (0, 1, 2, 3)), ("dp", (0, 1)), ("dp", (2, 3)), ("mixed", (1, 2))]
    stage = Stage(4, groups, 0, 2)
    stage.gather(0, "world", b"a")
    stage.gather(2, "mixed", b"b")
    assert stage.answers() == {}
    assert stage.broker.is_stuck()
    stage.broker.break_deadlock()
    assert stage.answers() == {2: [b"b", b"b"]}


def test_waiting_for_a_rank_whose_script_ended_is_reported():
    stage = Stage(2, mesh_groups(pp=2), 0, 1)
    stage.gather(0, "pp", b"a", file="train.py", line=7)
    with pytest.raises(MismatchError, match=r"waits for rank 1, which has ended, in .* at train.py:7"):
        stage.broker.end(1, "script ended")


@pytest.mark.parametrize("ends_first", [True, False])
def test_waiting_for_a_rank_that_the_capture_stopped_stops_the_waiting_one(ends_first):
    stage = Stage(2, mesh_groups(pp=2), 0, 1)
    if ends_first:
        stage.broker.end(1, "steps")
    stage.gather(0, "pp", b"a")
    if not ends_first:
        stage.broker.end(1, "steps")
    assert stage.answers() == {0: "steps"}


def test_large_collectives_that_differ_are_found_in_the_logs():
    stage = Stage(2, mesh_groups(pp=2), 0, 1)
    texts = ["all_reduce", "float32", "train.py", "broadcast", ""]
    rows = {
        0: [[1, 0, 0, 1, 400, 2, 10, *PLAIN], [1, 1, 0, 1, 400, 2, 11, *PLAIN]],
        1: [[1, 0, 0, 1, 400, 2, 10, *PLAIN], [1, 1, 3, 1, 400, 2, 12, *PLAIN]],
    }
    for rank, logged in rows.items():
        stage.broker.log(rank, texts, np.array(logged, dtype=np.int64).tobytes())
    found = str(stage.broker.find_mismatch())
    assert "call 1 of group 'pp'" in found
    assert "rank 0 calls all_reduce of 400 bytes float32 at train.py:11" in found
    assert "rank 1 calls broadcast of 400 bytes float32 at train.py:12" in found


def test_equal_logs_and_logs_cut_short_are_no_mismatch():
    stage = Stage(2, mesh_groups(pp=2), 0, 1)
    rows = np.array([[1, seq, 0, 1, 400, 2, 10, *PLAIN] for seq in range(5)], dtype=np.int64)
    stage.broker.log(0, ["all_reduce", "float32", "a.py", "", ""], rows.tobytes())
    stage.broker.log(1, ["all_reduce", "float32", "b.py", "", ""], rows[:3].tobytes())
    assert stage.broker.find_mismatch() is None


def test_a_rank_told_something_before_others_ran_is_stale_if_they_say_otherwise():
    stage = Stage(2, mesh_groups(pp=2), 0)
    stage.gather(0, "world", b"a", seq=0)
    assert stage.answers() == {0: [b"a", b"a"]}
    stage.enter(1)
    stage.gather(1, "world", b"b", seq=0)
    assert stage.answers() == {1: [b"a", b"b"]}
    assert stage.broker.stale() == {0}


def test_a_rank_told_what_turned_out_true_is_not_stale():
    stage = Stage(2, mesh_groups(pp=2), 0)
    stage.gather(0, "world", b"same")
    stage.enter(1)
    stage.gather(1, "world", b"same")
    assert stage.broker.stale() == set()


def test_a_rank_that_runs_again_is_told_the_truth_and_is_stale_no_more():
    stage = Stage(2, mesh_groups(pp=2), 0)
    stage.gather(0, "world", b"a")
    stage.broker.end(0, "steps")
    stage.enter(1)
    stage.gather(1, "world", b"b")
    stage.broker.end(1, "steps")
    stage.answers()
    stage.enter(0)
    stage.gather(0, "world", b"a")
    assert stage.answers() == {0: [b"a", b"b"]}
    assert stage.broker.stale() == set()


def test_a_thousand_ranks_that_all_run_are_answered_in_a_moment():
    world = 1024
    registry = GroupRegistry(world)
    broker = Broker(registry, lambda: np.zeros(world, dtype=np.int64))
    chunk = GroupsMade.of(mesh_groups(dp=world))
    started = time.process_time()
    for rank in range(world):
        broker.admit(rank, is_primary=True)
    for rank in range(world):
        broker.announce(rank, chunk)
    for seq in range(3):
        for rank in range(world):
            broker.gather(rank, seq + 1, call(0, seq), b"%d" % rank)
    replies = broker.take_replies()
    assert len(replies) == 3 * world
    assert opened(replies[-1].answer) == [b"%d" % rank for rank in range(world)]
    assert time.process_time() - started < 2.0


def test_gathers_of_twelve_thousand_ranks_cost_little():
    groups = mesh_groups(pp=16, dp=96, tp=8)
    chunk = GroupsMade.of(groups)
    primaries = list(range(0, 12288, 768))
    registry = GroupRegistry(12288)
    broker = Broker(registry, lambda: chosen)
    started = time.process_time()
    for rank in primaries:
        broker.admit(rank, is_primary=True)
        broker.announce(rank, chunk)
    chosen = stand_ins(registry, primaries)
    for seq in range(50):
        for rank in primaries:
            broker.gather(rank, seq + 1, call(0, seq), bytes(4))
    assert len(broker.take_replies()) == 50 * 16
    assert broker.stale() == set()
    assert time.process_time() - started < 1.0
