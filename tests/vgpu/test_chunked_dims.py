"""Ranks that differ in the chunks they hold of distributed tensors are told apart by arithmetic."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.vgpu.capturing import capture
from tests.vgpu.meshes import mesh_groups, registry_of

from sandtable.trace import Trace
from sandtable.vgpu.chunked_dims import ChunkedDim, chunk_labels
from sandtable.vgpu.classes import CapturePlan, Limits, plan

FSDP2 = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("nccl")
rank, tp = dist.get_rank(), int(sys.argv[1])
torch.cuda.set_device(rank % torch.cuda.device_count())
mesh = init_device_mesh("cuda", (dist.get_world_size() // tp, tp), mesh_dim_names=("dp", "tp"))
model = torch.nn.Sequential(torch.nn.Linear(64, 20), torch.nn.Linear(20, 48), torch.nn.Linear(48, 640)).cuda()
if tp > 1:
    parallelize_module(model, mesh["tp"], {"1": ColwiseParallel(), "2": RowwiseParallel()})
for layer in model:
    fully_shard(layer, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(3):
    loss = model(torch.zeros(4, 64, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(loss.detach().item())
"""


def run(tmp_path: Path, *, world_size: int, tp: int, ranks: str = "auto") -> Trace:
    script = tmp_path / "fsdp2.py"
    script.write_text(FSDP2, encoding="utf-8")
    return capture(script, tp, world_size=world_size, ranks="all" if ranks == "all" else "auto")


@pytest.mark.parametrize("tp", [1, 2])
def test_ranks_of_uneven_chunks_are_the_same_whether_all_ranks_run_or_a_few(tp: int, tmp_path: Path) -> None:
    every, few = (run(tmp_path, world_size=32, tp=tp, ranks=ranks) for ranks in ("all", "auto"))
    assert {cls.ranks for cls in few.classes} == {cls.ranks for cls in every.classes}
    assert [few.rank(rank).digest() for rank in range(32)] == [every.rank(rank).digest() for rank in range(32)]
    assert len(few.captured_ranks) <= 16


def test_ranks_of_uneven_chunks_are_certain_where_most_hold_nothing(tmp_path: Path) -> None:
    trace = run(tmp_path, world_size=512, tp=1)
    assert not {note.kind for note in trace.notes} & {"unsure classes"}
    assert {len(cls.ranks) for cls in trace.classes} == {1, 19, 28, 272, 192}
    assert len(trace.captured_ranks) <= 12


@given(length=st.integers(1, 2000), num_chunks=st.integers(1, 64))
def test_labels_are_those_of_the_chunks_that_torch_makes(length: int, num_chunks: int) -> None:
    registry = registry_of(num_chunks, mesh_groups(dp=num_chunks))
    labels = chunk_labels(np.arange(num_chunks), [(length, 0)], registry.own(0), registry)
    made = [len(chunk) for chunk in torch.empty(length).chunk(num_chunks)]
    made += [0] * (num_chunks - len(made))
    pairs = set(zip(labels.tolist(), made, strict=True))
    assert len(pairs) == len(set(labels.tolist())) == len(set(made)), "one label for each length"


def captured(dims: Sequence[ChunkedDim], work: Callable[[int], str], world_size: int) -> tuple[CapturePlan, set[int]]:
    """Plays the launcher, with ranks that report these dims."""
    registry = registry_of(world_size, mesh_groups(dp=world_size))
    digests = {0: work(0)}
    for _ in range(100):
        found = plan(
            registry,
            digests,
            primaries=[0],
            stale=frozenset(),
            gpus_per_node=8,
            limits=Limits(),
            chunked_dims=dict.fromkeys(digests, dims),
        )
        if found.is_final:
            return found, set(digests)
        digests |= {rank: work(rank) for rank in found.samples}
    raise AssertionError("the plan never became final")


def test_chunks_that_make_no_difference_leave_one_class() -> None:
    found, ranks = captured([(256, 0), (576, 0)], lambda rank: "same", 512)
    assert found.classes == {0: tuple(range(512))}
    assert len(ranks) <= 6


def test_more_kinds_of_chunks_than_ranks_may_run_divide_nothing() -> None:
    found, ranks = captured([(length, 0) for length in range(1, 500)], lambda rank: "same", 512)
    assert found.classes == {0: tuple(range(512))}
    assert len(ranks) == 2
