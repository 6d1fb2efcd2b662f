"""Newer forms of parallelism in torch: what each rank sends, against closed formulas."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.vgpu.virtual import rehearse
from torch import nn

from sandtable.trace import RankView

WIDTH = 64
NUM_LAYERS = 3
RANKS = 4
HEADS, TOKENS, HEAD_DIM = 4, 512, 16


def _last_step(view: RankView) -> Counter[tuple[str, str, int]]:
    return Counter((call.op, call.group.name, call.bytes_in) for call in view.collectives(view.step_slices()[-1]))


def _start() -> torch.device:
    dist.init_process_group("nccl")
    device = torch.device("cuda", dist.get_rank())
    torch.cuda.set_device(device)
    return device


def _hybrid_shards() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = _start()
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS))).to(device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(8, WIDTH, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_hybrid_shards_are_reduced_over_shards_and_then_over_replicas():
    gradient_bytes = WIDTH * WIDTH * 4
    calls = _last_step(rehearse(_hybrid_shards, ranks=RANKS).trace.rank(0))
    assert calls["reduce_scatter", "mesh_shard", gradient_bytes] == NUM_LAYERS
    assert calls["all_reduce", "mesh_replicate", gradient_bytes // 2] == NUM_LAYERS
    assert {group for _, group, _ in calls} == {"mesh_shard", "mesh_replicate"}


def _ring_attention(method: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    device = _start()
    mesh = init_device_mesh("cuda", (RANKS,), mesh_dim_names=("cp",))
    set_rotate_method(method)
    layer = nn.Linear(HEADS * HEAD_DIM, 3 * HEADS * HEAD_DIM, bias=False, dtype=torch.bfloat16, device=device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.randn(1, TOKENS, HEADS * HEAD_DIM, device=device, dtype=torch.bfloat16)
        with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
            query, key, value = layer(x).view(1, -1, 3, HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)
            F.scaled_dot_product_attention(query, key, value, is_causal=True).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("method", "op", "times"), [("allgather", "all_gather", 1), ("alltoall", "all_to_all", RANKS - 1)]
)
def test_a_ring_of_contexts_carries_keys_and_values(method, op, times):
    keys_and_values = 2 * 2 * HEADS * HEAD_DIM * TOKENS // RANKS
    calls = _last_step(rehearse(_ring_attention, ranks=RANKS, arguments={"method": method}).trace.rank(0))
    forward = sum(count for (name, _, size), count in calls.items() if name == op and size == keys_and_values)
    # Backward carries them again; their gradients travel with each turn.
    assert forward >= 2 * times


def _pipeline(schedule: str) -> None:
    from torch.distributed.pipelining import PipelineStage, schedules

    device = _start()
    rank, num_microbatches = dist.get_rank(), 4 * RANKS
    stages = [
        PipelineStage(nn.Linear(WIDTH, WIDTH, bias=False).to(device), index, 2 * RANKS, device)
        for index in (rank, 2 * RANKS - 1 - rank)  # down and up again, like a V
    ]
    step = getattr(schedules, schedule)(stages, num_microbatches, loss_fn=F.mse_loss).step
    optimizer = torch.optim.SGD([weight for stage in stages for weight in stage.submod.parameters()], lr=0.1)
    x = torch.randn(num_microbatches * 2, WIDTH, device=device)
    for _ in range(2):
        if rank == 0:
            step(x, target=x)
        else:
            step()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("schedule", ["ScheduleZBVZeroBubble", "ScheduleDualPipeV"])
def test_pipelines_in_a_v_pass_every_microbatch_between_neighbours(schedule):
    trace = rehearse(_pipeline, ranks=RANKS, arguments={"schedule": schedule}).trace
    for rank in range(RANKS):
        calls = _last_step(trace.rank(rank))
        sent = sum(count for (op, _, size), count in calls.items() if op == "send" and size == 2 * WIDTH * 4)
        # Two stages send activations on and gradients back. On the first rank one stage is first and one last; on the
        # last rank one stage follows the other without a message.
        num_peers = {0: 1, RANKS - 1: 1}.get(rank, 2)
        assert sent == 4 * RANKS * 2 * num_peers
