"""Symmetric memory: copies from peers are messages, and fused products overlap with them on two streams."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from tests.vgpu.virtual import on_gpu, rehearse

from sandtable.cluster import load
from sandtable.engine import simulate

RANKS = 4
ROWS, WIDTH = 1 << 13, 1 << 13


def _start() -> Any:
    dist.init_process_group("nccl")
    return dist.group.WORLD.group_name  # type: ignore[union-attr]


def _read_from_the_next() -> None:
    import torch.distributed._symmetric_memory as symmetric

    name = _start()
    memory = symmetric.rendezvous(symmetric.empty(1 << 20, dtype=torch.bfloat16, device=torch.device("cuda")), name)
    peer = (memory.rank + 1) % memory.world_size
    torch.empty(1 << 20, dtype=torch.bfloat16, device="cuda").copy_(memory.get_buffer(peer, (1 << 20,), torch.bfloat16))
    memory.barrier()


def test_a_copy_from_a_peer_is_a_message_from_it_while_another_reads_from_here():
    trace = rehearse(_read_from_the_next, ranks=RANKS).trace
    calls = {call.op: call for call in trace.rank(1).collectives()}
    assert (calls["recv"].peer, calls["send"].peer) == (2, 0)
    assert calls["recv"].bytes_out == calls["send"].bytes_in == 2 << 20
    assert calls["recv"].batch == calls["send"].batch != 0


def test_ranks_that_read_from_each_other_in_turn_are_one_class():
    trace = rehearse(_read_from_the_next, ranks=8, captured="auto").trace
    assert len(trace.classes) == 1
    assert len(trace.captured_ranks) < 8
    assert trace.rank(5).peer(0) == 6


def _multiply(*, fused: bool) -> None:
    import sandtable

    name = _start()
    part = torch.empty(ROWS // RANKS, WIDTH, dtype=torch.bfloat16, device="cuda")
    weight = torch.empty(WIDTH, WIDTH // RANKS, dtype=torch.bfloat16, device="cuda")
    for _ in range(2):
        if fused:
            whole, (product,) = torch.ops.symm_mem.fused_all_gather_matmul(part, [weight], 0, name)
            assert whole.shape == (ROWS, WIDTH)
            reduced = torch.ops.symm_mem.fused_matmul_reduce_scatter(product, weight.T, "sum", 0, name)
        else:
            whole = torch.empty(ROWS, WIDTH, dtype=torch.bfloat16, device="cuda")
            dist.all_gather_into_tensor(whole, part)
            reduced = torch.empty_like(part)
            dist.reduce_scatter_tensor(reduced, whole @ weight @ weight.T)
        assert reduced.shape == part.shape
        sandtable.step()


def test_products_fused_with_communication_run_beside_it():
    plain, fused = (rehearse(_multiply, ranks=RANKS, arguments={"fused": fused}).trace for fused in (False, True))
    times = [simulate(trace, load("dgx-h100", nodes=1)).step_ns for trace in (plain, fused)]
    assert times[1] < 0.95 * times[0]


@on_gpu(ranks=2)
def test_reductions_in_one_kernel_are_collectives():
    import torch.distributed._symmetric_memory as symmetric

    name = _start()
    x = symmetric.empty(8, dtype=torch.float32, device=torch.device("cuda")).fill_(1.0)
    symmetric.rendezvous(x, name)
    torch.ops.symm_mem.multimem_all_reduce_(x, "sum", name)
    assert x.tolist() == [2.0] * 8
    assert torch.ops.symm_mem.one_shot_all_reduce(x, "sum", name).shape == x.shape
    gathered = torch.ops.symm_mem._low_contention_all_gather(torch.empty(1024, 64, device="cuda"), name)
    assert gathered.shape == (2048, 64)
