"""`--ranks auto` runs a few ranks, `--ranks all` runs them all, and both give the same trace."""

from pathlib import Path

import pytest
from tests.vgpu.capturing import GPUS_PER_NODE, capture

from sandtable.cluster import load
from sandtable.engine import simulate
from sandtable.trace import Trace

WORLD_SIZE = 16
EXAMPLES = {
    "resnet_ddp": ("resnet_ddp.py", "--steps", 2),
    "gpt_ddp": ("gpt_ddp.py", "--bucket-mb", 0.1),
    "gpt_fsdp2": ("gpt_fsdp2.py", "--accumulate", 2),
    "gpt_tp": ("gpt_tp.py", "--tp", 4),
    "tensor_parallel_gpt": ("tensor_parallel_gpt.py", "--tp", 4, "--sequence-parallel"),
    # A pipeline of 16 stages, or of 32 interleaved, needs as many layers: 2.7b has 32.
    "gpt_pp-gpipe": ("gpt_pp.py", "--size", "2.7b", "--batch", 16, "--schedule", "gpipe"),
    "gpt_pp-1f1b": ("gpt_pp.py", "--size", "2.7b", "--batch", 16, "--schedule", "1f1b"),
    "gpt_pp-interleaved": ("gpt_pp.py", "--size", "2.7b", "--batch", 16, "--schedule", "interleaved"),
    "gpt_3d": ("gpt_3d.py", "--tp", 2, "--pp", 4, "--dp", 2),
    "gpt_3d-interleaved": ("gpt_3d.py", "--tp", 4, "--pp", 2, "--schedule", "interleaved", "--sequence-parallel"),
    "gpt_3d-tp-dp": ("gpt_3d.py", "--tp", 2, "--dp", 8, "--sequence-parallel"),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", EXAMPLES.values(), ids=EXAMPLES)
def test_every_rank_is_the_same_whether_all_ranks_run_or_a_few(command: tuple[object, ...]) -> None:
    script, *flags = command
    every = capture(str(script), *flags, world_size=WORLD_SIZE, ranks="all")
    few = capture(str(script), *flags, world_size=WORLD_SIZE, ranks="auto")
    assert every.captured_ranks == tuple(range(WORLD_SIZE))
    assert facts(few) == facts(every)
    assert {cls.ranks for cls in few.classes} == {cls.ranks for cls in every.classes}


ZERO_1 = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())
layers = [torch.nn.Linear(50, 50, device="cuda") for _ in range(9)]
parameters = [p for layer in layers for p in (*layer.parameters(), torch.nn.Parameter(torch.zeros(50, device="cuda")))]
length = -(-sum(p.numel() for p in parameters) // world_size)
flat, grads = (torch.zeros(length * world_size, device="cuda") for _ in range(2))
low, high, start, pieces = rank * length, (rank + 1) * length, 0, []
for p in parameters:  # parameters and gradients are views of flat buffers; each rank updates the pieces in its shard
    end = start + p.numel()
    p.data, p.grad = flat[start:end].view(p.shape), grads[start:end].view(p.shape)
    if max(start, low) < min(end, high):
        pieces.append(slice(max(start, low), min(end, high)))
    start = end
masters = [torch.nn.Parameter(flat[piece].clone()) for piece in pieces]
optimizer = torch.optim.AdamW(masters)
shard = torch.zeros(length, device="cuda")
for _ in range(3):
    x = torch.zeros(4, 50, device="cuda")
    for layer in layers:
        x = layer(x)
    x.sum().backward()
    dist.reduce_scatter_tensor(shard, grads)
    for master, piece in zip(masters, pieces):
        master.grad = shard[piece.start - low : piece.stop - low]
    torch.nn.utils.clip_grad_norm_(masters, 1.0, foreach=False)
    optimizer.step()
    for master, piece in zip(masters, pieces):
        flat[piece].copy_(master.detach())
    dist.all_gather_into_tensor(flat, flat[low:high])
    grads.zero_()
    if rank == 0:
        print(float(x.sum()))
"""


@pytest.mark.parametrize("name", ["gpt_fsdp1", "zero_1"])
def test_ranks_with_differently_cut_shards_take_the_time_and_memory_of_all_ranks(name: str, tmp_path: Path) -> None:
    script = tmp_path / "zero_1.py"
    script.write_text(ZERO_1, encoding="utf-8")
    every, few = (
        capture("gpt_fsdp1.py" if name == "gpt_fsdp1" else script, world_size=WORLD_SIZE, ranks=ranks)
        for ranks in ("all", "auto")
    )
    assert len(every.classes) > WORLD_SIZE // 2, "shards are cut at different places"
    assert len(few.classes) <= 2
    assert {note.kind for note in few.notes} >= {"sharded ranks"}
    assert not {note.kind for note in few.notes} & {"unsure classes"}
    cluster = load("dgx-a100", nodes=WORLD_SIZE // GPUS_PER_NODE)
    step_ns, expected_ns = (simulate(trace, cluster).step_ns for trace in (few, every))
    assert step_ns == pytest.approx(expected_ns, rel=1e-6)
    peaks, expected_peaks = (max(c.records.memory.allocated_bytes for c in trace.classes) for trace in (few, every))
    assert peaks == pytest.approx(expected_peaks, rel=1e-3)


def facts(trace: Trace) -> dict[int, tuple[object, ...]]:
    """What makes a rank's trace, by rank."""
    found: dict[int, tuple[object, ...]] = {}
    for rank in range(trace.world_size):
        view = trace.rank(rank)
        peers = tuple(view.peer(row) for row in range(len(view.calls)))
        found[rank] = (view.digest(), view.groups, peers, view.memory)
    return found
