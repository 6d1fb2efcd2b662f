from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.building import SIGNATURES, Script
from tests.engine.reference import Reference

from sandtable.engine.clock import ActorSpeed, Wiring, run_clock
from sandtable.engine.operator_table import Costs
from sandtable.engine.program import Opcode, Program, compile_program
from sandtable.trace import Phase, SyncKind
from sandtable.trace.kinds import LaunchKind


def costs(work=(1000, 300, 9000, 50), host=100.0, latency=0.0, call=0.0, **more: Any) -> Costs:
    return Costs(
        work_ns=np.array(work, dtype=float),
        host_ns=np.full((len(Phase), len(SIGNATURES)), host),
        launch_host_ns=np.full(len(LaunchKind), host),
        hooked_scale=1.0,
        is_copy=np.zeros(len(SIGNATURES), dtype=bool),
        has_flops=np.array([True, False, True, False]),
        call_host_ns=call,
        mark_host_ns=more.get("mark", 0.0),
        launch_latency_ns=latency,
        is_synchronous=more.get("is_synchronous", False),
    )


def transfer(latency=0.0, work=1000.0, sm_share=0.0) -> Any:
    return SimpleNamespace(latency_ns=latency, work_ns=work, sm_share=sm_share)


def wiring(programs: list[Program], transfers: list[Any], *, slots: list[int], loads: list[list[float]]) -> Wiring:
    """Edge k of every actor leads to channel k, pattern k to transfer k; `loads` on links, one list a transfer."""
    num_links = max((len(row) for row in loads), default=0)
    links = np.concatenate([np.arange(len(row)) for row in loads]) if num_links else np.zeros(0)
    return Wiring(
        slots=np.array(slots, dtype=np.int32),
        transfers=tuple(transfers),
        channel_of_edge=tuple(np.arange(len(p.edges), dtype=np.int32) for p in programs),
        transfer_of_pattern=tuple(np.arange(len(p.patterns), dtype=np.int32) for p in programs),
        num_link_classes=num_links,
        first_link=np.cumsum([0, *map(len, loads)]).astype(np.int32),
        links=links.astype(np.int32),
        loads=np.array([load for row in loads for load in row], dtype=float),
    )


def run(scripts: list[Script], *, with_costs: Costs | None = None, transfers=(), slots=(), loads=(), speeds=None):
    programs = [compile_program(script.records(), with_costs or costs()) for script in scripts]
    times, stuck = run_clock(
        programs,
        wiring(programs, list(transfers), slots=list(slots), loads=[list(row) for row in loads]),
        speeds or [ActorSpeed()] * len(programs),
    )
    return programs, times, stuck


def last_end(times: Any) -> int:
    return int(times.end_ns.max())


def test_work_on_one_stream_takes_the_sum_when_the_host_is_ahead():
    script = Script()
    for _ in range(3):
        script.op(0)
    _, (times,), _ = run([script])
    assert last_end(times) == 100 + 3 * 1000


def test_small_kernels_are_bound_by_the_host_that_issues_them():
    script = Script()
    for _ in range(100):
        script.op(3)
    _, (times,), _ = run([script])
    assert last_end(times) == 100 * 100 + 50


def test_launch_latency_delays_the_first_kernel_alone():
    script = Script()
    script.op(0)
    script.op(0)
    _, (times,), _ = run([script], with_costs=costs(latency=5000.0))
    assert last_end(times) == 100 + 5000 + 2000


def test_a_cpu_that_does_the_work_itself_adds_issue_and_work():
    script = Script()
    script.op(0)
    script.sync()
    script.op(0)
    _, (times,), _ = run([script], with_costs=costs(is_synchronous=True))
    assert last_end(times) == 2 * (100 + 1000)


def test_streams_run_side_by_side_and_share_the_device():
    script = Script()
    script.op(2, stream=0)
    script.op(2, stream=1)
    _, (times,), _ = run([script], with_costs=costs(host=0.0))
    assert last_end(times) == pytest.approx(2 * 9000, abs=2)


def test_an_event_orders_two_streams():
    script = Script()
    script.op(2, stream=0)
    script.record(5, stream=0)
    script.wait_event(5, stream=1)
    script.op(0, stream=1)
    program, (times,), _ = run([script], with_costs=costs(host=0.0))
    assert times.start_ns[np.flatnonzero(program[0].stream == 1)[-1]] == 9000
    assert last_end(times) == 10_000


def test_a_wait_means_the_last_recording_of_its_event():
    script = Script()
    script.record(5, stream=0)
    script.op(2, stream=0)
    script.wait_event(5, stream=1)  # the first recording: at once
    script.op(0, stream=1)
    script.record(5, stream=0)
    script.wait_event(5, stream=1)
    script.op(1, stream=1)
    programs, (times,), _ = run([script], with_costs=costs(host=0.0))
    on_other = np.flatnonzero((programs[0].stream == 1) & (programs[0].kind == Opcode.RUN))
    assert times.start_ns[on_other[0]] == 0
    assert times.start_ns[on_other[1]] >= 9000


def test_an_event_that_was_never_recorded_holds_nobody_up():
    script = Script()
    script.wait_event(9, stream=0)
    script.op(0)
    _, (times,), stuck = run([script])
    assert not stuck
    assert last_end(times) == 1100


@pytest.mark.parametrize("kind", [SyncKind.ITEM, SyncKind.STREAM, SyncKind.DEVICE])
def test_the_host_waits_where_the_script_reads_a_number(kind: SyncKind):
    script = Script()
    script.op(2)
    script.sync(kind)
    script.op(0)
    _, (times,), _ = run([script])
    assert last_end(times) == 100 + 9000 + 100 + 1000


def test_a_wait_for_the_device_waits_for_every_stream():
    script = Script()
    script.op(0, stream=0)
    script.op(2, stream=3)
    script.sync(SyncKind.DEVICE)
    script.op(3, stream=0)
    _, (times,), _ = run([script], with_costs=costs(host=0.0, work=(0, 300, 9000, 50)))
    assert last_end(times) == 9000 + 50


def test_a_collective_starts_when_the_last_member_arrives():
    early, late = Script(rank=0), Script(rank=1)
    late.op(2)
    for script in (early, late):
        script.collective(1024)
        script.op(0)
    _, times, _ = run([early, late], transfers=[transfer(200, 1000)], slots=[2], loads=[[1.0]])
    assert [last_end(each) for each in times] == [9100 + 200 + 1000 + 1000] * 2
    assert times[0].meet_ns.max() == 9100


def test_a_message_is_matched_in_order():
    sender, receiver = Script(rank=0), Script(rank=1)
    for _ in range(3):
        sender.op(0)
        sender.send(8, 1)
        receiver.recv(8, 1)
    _, times, stuck = run([sender, receiver], transfers=[transfer(0, 500)], slots=[2], loads=[[1.0]])
    assert not stuck
    assert last_end(times[1]) == 100 + 3 * (1000 + 500)


def test_messages_issued_as_one_do_not_wait_for_each_other():
    scripts = [Script(rank=0), Script(rank=1)]
    for script in scripts:
        # send first on both: one after the other this would hang
        script.send(8, 1, batch=1)
        script.recv(8, 1, batch=1)
    programs = [compile_program(script.records(), costs()) for script in scripts]
    wired = wiring(programs, [transfer(0, 500)] * 2, slots=[2, 2], loads=[[1.0], [0.0, 1.0]])
    # what one sends the other receives: edges are in order (recv, send)
    crossed = Wiring(
        **{
            **{name: getattr(wired, name) for name in wired.__slots__},
            "channel_of_edge": (np.array([0, 1], dtype=np.int32), np.array([1, 0], dtype=np.int32)),
        }
    )
    times, stuck = run_clock(programs, crossed, [ActorSpeed()] * 2)
    assert not stuck
    assert last_end(times[0]) == 500


def test_unbatched_sends_to_each_other_stand_still_and_are_named():
    scripts = [Script(rank=0), Script(rank=1)]
    for script in scripts:
        script.send(8, 1)
        script.recv(8, 1)
    programs = [compile_program(script.records(), costs()) for script in scripts]
    wired = wiring(programs, [transfer(0, 500)] * 2, slots=[2, 2], loads=[[1.0], [0.0, 1.0]])
    crossed = Wiring(
        **{
            **{name: getattr(wired, name) for name in wired.__slots__},
            "channel_of_edge": (np.array([0, 1], dtype=np.int32), np.array([1, 0], dtype=np.int32)),
        }
    )
    _, stuck = run_clock(programs, crossed, [ActorSpeed()] * 2)
    assert {each.actor for each in stuck} == {0, 1}


def test_a_collective_beside_compute_slows_it_by_its_multiprocessors():
    script = Script()
    script.collective(1024, stream=1)
    script.op(2, stream=0)
    _, (times,), _ = run(
        [script], with_costs=costs(host=0.0), transfers=[transfer(0, 20_000, 0.25)], slots=[1], loads=[[1.0]]
    )
    runs = times.end_ns - times.start_ns
    assert sorted(runs.tolist()) == [9000 / 0.75, 20_000]


def two_calls(loads: list[list[float]], *, second_after: int = 0) -> tuple[int, int]:
    """Return the ends of two transfers of 10,000 ns each that start on streams of their own."""
    script = Script()
    script.collective(1024, stream=1, group=0)
    for _ in range(second_after):
        script.op(3, stream=2)
    script.collective(2048, stream=2, group=1)
    programs, (times,), _ = run(
        [script],
        with_costs=costs(host=0.0, work=(0, 0, 0, 1000)),
        transfers=[transfer(0, 10_000)] * 2,
        slots=[1, 1],
        loads=loads,
    )
    ends = times.end_ns[programs[0].kind == Opcode.CALL]
    return int(ends[0]), int(ends[1])


def test_two_transfers_on_one_link_share_it():
    assert two_calls([[1.0], [1.0]]) == (20_000, 20_000)


def test_a_transfer_that_comes_later_shares_from_then_on():
    assert two_calls([[1.0], [1.0]], second_after=5) == (15_000, 20_000)


def test_transfers_on_different_links_do_not_disturb_each_other():
    assert two_calls([[1.0], [0.0, 1.0]]) == (10_000, 10_000)


def test_a_link_that_is_not_full_slows_nobody():
    assert two_calls([[0.5], [0.5]]) == (10_000, 10_000)


def test_sharing_is_max_min_fair():
    # a link loaded 1.0 by both: half speed each; the rest of the second's path has room to spare
    first, second = two_calls([[1.0, 0.0], [1.0, 0.4]])
    assert (first, second) == (20_000, 20_000)


def test_a_slow_device_takes_longer_and_jitter_depends_on_the_seed_alone():
    script = Script()
    for _ in range(20):
        script.op(2)
        script.record(1)
    slow = run([script], speeds=[ActorSpeed(slowness=2.0)])[1][0]
    assert last_end(slow) == 100 + 20 * 18_000
    ends = [last_end(run([script], speeds=[ActorSpeed(jitter=0.05, seed=seed)])[1][0]) for seed in (1, 1, 2)]
    assert ends[0] == ends[1] != ends[2]
    assert ends[0] == pytest.approx(20 * 9000, rel=0.1)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("op"), st.integers(0, 3), st.integers(0, 2)),
        st.tuples(st.just("record"), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("wait_event"), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("sync"), st.just(0), st.integers(0, 2)),
    ),
    max_size=12,
)


def build(rank: int, parts: list[list[tuple[str, int, int]]], call_stream: int) -> Script:
    """Parts with a collective of all ranks after each, waited for by stream 0."""
    script = Script(rank=rank)
    for part in parts:
        for word, number, stream in part:
            if word == "op":
                script.op(number, stream=stream)
            elif word == "sync":
                script.sync(stream=stream)
            else:
                getattr(script, word)(number, stream=stream)
        script.wait(script.collective(64, stream=call_stream))
    return script


@settings(max_examples=150, deadline=None)
@given(
    parts=st.lists(st.lists(ACTIONS, min_size=2, max_size=2), min_size=1, max_size=4),
    call_stream=st.integers(0, 3),
    host=st.integers(0, 2000),
    latency=st.integers(0, 5000),
)
def test_the_clock_agrees_with_the_plain_recursion(parts, call_stream, host, latency):
    scripts = [build(rank, [part[rank] for part in parts], call_stream) for rank in range(2)]
    # streams that compute at the same time share the device, which the recursion does not know: no two may
    chosen = costs(host=float(host), latency=float(latency), call=500.0, mark=20.0, work=(1000, 0, 0, 0))
    scripts = [_one_compute_stream(script) for script in scripts]
    programs, times, stuck = run(scripts, with_costs=chosen, transfers=[transfer(300, 700)], slots=[2], loads=[[1.0]])
    assert not stuck
    plain = Reference([script.records() for script in scripts], chosen, call_ns=1000)
    for rank, (program, each) in enumerate(zip(programs, times, strict=True)):
        device = program.kind != Opcode.HOST_WAIT
        expected = [plain.end(rank, int(row)) for row in program.last_record[device]]
        assert each.end_ns[device].tolist() == expected


def _one_compute_stream(script: Script) -> Script:
    """Operators with work are moved to stream 0; those without stay where they are."""
    script.rows = [
        (kind, ref, 0 if kind == 0 and ref == 0 else stream, phase, line, value)
        for kind, ref, stream, phase, line, value in script.rows
    ]
    return script


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.lists(ACTIONS, min_size=3, max_size=3), min_size=1, max_size=4), share=st.floats(0, 0.5))
def test_time_never_runs_backwards(parts, share):
    scripts = [build(rank, [part[rank] for part in parts], 1) for rank in range(3)]
    programs, times, _ = run(scripts, transfers=[transfer(10, 900, share)], slots=[3], loads=[[1.0]])
    for program, each in zip(programs, times, strict=True):
        assert (each.end_ns >= each.start_ns).all()
        assert (each.start_ns >= 0).all()
        for stream in range(len(program.stream_ids)):
            mine = np.flatnonzero((program.stream == stream) & (program.kind != Opcode.HOST_WAIT))
            assert (np.diff(each.end_ns[mine]) >= 0).all()
            assert (each.start_ns[mine][1:] >= each.end_ns[mine][:-1]).all()


def test_the_same_input_gives_the_same_output():
    scripts = [build(rank, [[("op", 2, 0), ("op", 1, 1)]] * 5, 1) for rank in range(4)]
    runs = [run(scripts, transfers=[transfer(10, 900, 0.2)], slots=[4], loads=[[1.0]])[1] for _ in range(2)]
    for first, second in zip(*runs, strict=True):
        assert first.end_ns.tolist() == second.end_ns.tolist()
