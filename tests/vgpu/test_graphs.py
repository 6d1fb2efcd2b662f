"""CUDA graphs and pools: a capture does nothing, a replay does everything with one launch, and memory stays apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.vgpu.virtual import on_gpu, rehearse

from sandtable.cluster import load
from sandtable.engine import simulate
from sandtable.trace import Kind, Trace
from sandtable.trace.kinds import LaunchKind


def _products(trace: Trace) -> list[int]:
    """Return how each matrix product of rank 0 was launched."""
    view = trace.rank(0)
    rows = zip(view.records.kind, view.records.ref, view.records.value, strict=True)
    return [
        int(value) for kind, ref, value in rows if kind == Kind.OPERATOR and view.signature(int(ref)).op == "aten::mm"
    ]


def _replay() -> None:
    x = torch.zeros(512, 512, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x @ x @ x
        assert torch.cuda.is_current_stream_capturing()
    assert not torch.cuda.is_current_stream_capturing()
    for _ in range(3):
        graph.replay()
    assert y.shape == x.shape


def test_a_capture_records_nothing_and_each_replay_all_of_it_with_one_launch():
    launches = _products(rehearse(_replay).trace)
    assert len(launches) == 6
    assert launches.count(LaunchKind.GRAPH) == 3 * 1


def _train(num_layers: int, *, in_graph: bool) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(num_layers))).cuda()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    x = torch.zeros(16, 64, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).sum().backward()
        optimizer.step()

    step()
    if not in_graph:
        for _ in range(3):
            step()
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()


def test_steps_inside_a_graph_end_at_its_replays_and_the_host_does_not_hold_them_up():
    eager, replayed = (
        rehearse(_train, arguments={"num_layers": 12, "in_graph": in_graph}).trace for in_graph in (False, True)
    )
    assert replayed.num_steps == eager.num_steps == 4
    times = [simulate(trace, load("dgx-a100", nodes=1)).step_ns for trace in (eager, replayed)]
    assert times[1] < 0.5 * times[0]


def _reduce_in_graph() -> None:
    dist.init_process_group("nccl")
    x = torch.zeros(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(x)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
    for _ in range(2):
        graph.replay()


def test_collectives_in_a_graph_are_calls_of_every_replay():
    trace = rehearse(_reduce_in_graph, ranks=2).trace
    calls = [call for call in trace.rank(0).collectives() if call.op == "all_reduce"]
    assert len(calls) == 4
    assert [call.seq for call in calls] == sorted({call.seq for call in calls})
    simulate(trace, load("dgx-a100", nodes=1))  # raises if a call is never met


@on_gpu()
def test_memory_of_a_capture_stays_in_the_pool_of_its_graph():
    graph = torch.cuda.CUDAGraph()
    x = torch.zeros(1, device="cuda")
    with torch.cuda.graph(graph):
        (x + torch.empty(64 << 20, device="cuda")).sum()
    before = torch.cuda.memory_reserved()
    assert before >= 512 << 20
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before
    torch.empty(64 << 20, device="cuda")
    assert torch.cuda.memory_reserved() == before + (256 << 20)
    graph.reset()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < 64 << 20


@on_gpu()
def test_tensors_of_a_pool_come_from_its_memory():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        first = torch.empty(32 << 20, device="cuda")
        assert pool.use_count() == 2
    address = first.data_ptr()
    del first
    assert torch.empty(32 << 20, device="cuda").data_ptr() != address
    with torch.cuda.use_mem_pool(pool):
        assert torch.empty(32 << 20, device="cuda").data_ptr() == address


@on_gpu()
def test_graphed_callables_run_forward_and_backward():
    layer = torch.nn.Linear(64, 64).cuda()
    graphed: Any = torch.cuda.make_graphed_callables(layer, (torch.zeros(8, 64, device="cuda", requires_grad=True),))
    graphed(torch.zeros(8, 64, device="cuda", requires_grad=True)).sum().backward()
    assert layer.weight.grad is not None


@on_gpu()
def test_replay_without_a_capture_is_an_error():
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        torch.cuda.CUDAGraph().replay()
