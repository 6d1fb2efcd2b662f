"""Ranks that do not meet: calls, messages and groups held against each other, and who waits for whom."""

from typing import Any

import numpy as np

from sandtable.trace.cycles import find_cycle
from sandtable.vgpu.call_logs import CallLog, Waiting
from sandtable.vgpu.deadlocks import deadlock
from sandtable.vgpu.group_order import MadeGroup, find_group_mismatch
from sandtable.vgpu.group_registry import GroupRegistry
from sandtable.vgpu.host_clock import HostTime
from sandtable.vgpu.lateness import Lateness
from sandtable.vgpu.messages import find_message_mismatch
from sandtable.vgpu.mismatches import find_mismatch, sole_call
from sandtable.vgpu.protocol import Call, GroupsMade

TEXTS = ("", "all_reduce", "float32", "train.py", "sum", "max", "all_to_all", "2,3>2,3", "1,4>1,4", "send", "recv")


def registry(world_size: int = 2) -> GroupRegistry:
    made = GroupRegistry(world_size)
    for rank in range(world_size):
        made.announce(rank, GroupsMade.of([("world", range(world_size))]))
    return made


def log(*calls: dict[str, Any]) -> CallLog:
    """Return a log of calls on the world; each is given by what differs from an all-reduce of 8 bytes on line 1."""
    rows = []
    for seq, given in enumerate(calls):
        call = {"op": "all_reduce", "reduce": "sum", "splits": "", "num_bytes": 8, "line": 1, "peer": -1, "root": -1}
        call |= {"seq": seq} | given
        text = {name: TEXTS.index(str(call[name])) for name in ("op", "reduce", "splits")}
        plain = call["seq"], text["op"], 2, call["num_bytes"], 3, call["line"], call["peer"], 0, call["root"]
        rows.append([0, *plain, text["reduce"], text["splits"]])
    made = CallLog()
    made.add(TEXTS, np.array(rows, dtype=np.int64).tobytes())
    return made


def waiting(rank: int, *missing: int, peer: int = -1, ended: tuple[int, ...] = ()) -> Waiting:
    call = Call(group=0, seq=4, op="recv" if peer >= 0 else "barrier", dtype="", num_bytes=0, peer=peer, line=rank)
    return Waiting(rank=rank, call=call, group="the world", missing=missing, ended=ended)


def test_reduce_operators_and_roots_must_agree():
    for differing in ({"reduce": "max"}, {"root": 1}):
        error = find_mismatch(registry(), {0: log({}, {}), 1: log({}, differing)})
        assert error is not None
        assert "call 1 of the world group" in str(error)
    assert find_mismatch(registry(), {0: log({}, {}), 1: log({}, {})}) is None


def test_splits_must_fit():
    mine = {"op": "all_to_all", "num_bytes": -1, "splits": "2,3>2,3"}
    error = find_mismatch(registry(), {0: log(mine), 1: log(mine | {"splits": "1,4>1,4"})})
    assert error is not None
    assert "giving 2,3 and taking 2,3 rows" in str(error)


def test_the_first_call_without_a_counterpart_is_named():
    mine = [{}, {"line": 9}, {}, {"num_bytes": 4}]
    theirs = [{}, {}, {"num_bytes": 4}]
    error = find_mismatch(registry(), {0: log(*mine), 1: log(*theirs)})
    assert error is not None
    assert error.findings[0].evidence[0].line == 9
    assert "which rank 1 does not make" in error.findings[0].evidence[0].text


def test_counterparts_may_stand_on_lines_of_their_own():
    calls = [Call(0, seq, "broadcast", "", 0, "train.py", line) for seq, line in enumerate((1, 5, 1, 5))]
    others = [call._replace(line=7 if call.line == 5 else 1) for call in calls]
    assert sole_call(calls, others) is None
    extra = [*calls[:1], calls[0]._replace(line=9), *calls[1:]]
    assert sole_call(extra, others) == (True, extra[1])


def test_messages_must_have_one_size():
    sent = {"op": "send", "peer": 1, "num_bytes": 64}
    received = {"op": "recv", "peer": 0, "num_bytes": 32}
    error = find_message_mismatch(registry(), {0: log(sent), 1: log(received)}, ended=())
    assert error is not None
    assert error.findings[0].rule == "p2p-mismatch"
    assert find_message_mismatch(registry(), {0: log(sent), 1: log(received | {"num_bytes": 64})}, ended=()) is None


def test_a_message_may_be_received_yet_unless_its_receiver_has_ended():
    logs = {0: log({"op": "send", "peer": 1}), 1: log()}
    assert find_message_mismatch(registry(), logs, ended=()) is None
    error = find_message_mismatch(registry(), logs, ended={1})
    assert error is not None
    assert "rank 1 never received" in str(error)


def test_a_circle_is_named_whole():
    assert find_cycle({0: (1,), 1: (2,), 2: (0,)}) == [0, 1, 2]
    assert find_cycle({0: (1,), 1: (2,)}) == []
    assert find_cycle({3: (1,), 1: (2, 5), 5: (1,)}) == [1, 5]
    finding = deadlock([waiting(0, 1), waiting(1, 0)]).findings[0]
    assert finding.rule == "deadlock-cycle"
    assert [item.ranks for item in finding.evidence] == [(0,), (1,)]


def test_a_rank_that_has_ended_is_missing():
    assert deadlock([waiting(0, 1, ended=(1,))]).findings[0].rule == "missing-participant"
    assert deadlock([waiting(0, 1, peer=1, ended=(1,))]).findings[0].rule == "p2p-mismatch"


def test_groups_are_made_by_all_ranks_in_one_order():
    first, second = MadeGroup((0, 1), "train.py", 3), MadeGroup((2, 3), "train.py", 4)
    assert find_group_mismatch({0: [first, second], 1: [first, second]}, ended={0, 1}) is None
    error = find_group_mismatch({0: [first, second], 1: [second, first]}, ended=())
    assert error is not None
    assert {item.line for item in error.findings[0].evidence} == {3, 4}
    assert find_group_mismatch({0: [first, second], 1: [first]}, ended=()) is None
    assert find_group_mismatch({0: [first, second], 1: [first]}, ended={1}) is not None


def test_a_rank_that_comes_after_the_timeout_is_late():
    lateness = Lateness()
    call = Call(0, 0, "barrier", "", 0, "train.py", 8)
    lateness.arrive(1, 0, call, HostTime(1.0), 600.0)
    lateness.arrive(0, 0, call, HostTime(1.0, 599.0), 600.0)
    assert not lateness.findings
    lateness.arrive(1, 0, call._replace(seq=1), HostTime(2.0), 600.0)
    lateness.arrive(0, 0, call._replace(seq=1), HostTime(2.0, 1300.0, "train.py", 5), 600.0)
    (finding,) = lateness.findings
    assert (finding.rule, finding.severity) == ("collective-timeout", "error")
    assert [item.line for item in finding.evidence] == [8, 5, 8]
