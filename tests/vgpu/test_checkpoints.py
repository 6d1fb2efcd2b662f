"""State is saved and loaded whichever ranks run, and large values, which are zeros, take no space."""

import io
import os
import tempfile
from pathlib import Path

import pytest
from tests.vgpu.capturing import capture
from tests.vgpu.test_launcher import digests
from tests.vgpu.virtual import on_gpu

HEAD = """
import os, sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_state_dict, set_model_state_dict, set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

folder = Path(sys.argv[1])
dist.init_process_group("cpu:gloo,cuda:nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.LayerNorm(64)).cuda()
"""
MESHES = {
    "tensor parallel": """
mesh = init_device_mesh("cuda", (world // 4, 4), mesh_dim_names=("dp", "tp"))
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
mesh = mesh["dp"]
""",
    "hybrid": """
mesh = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("copies", "shards"))
""",
}
TRAIN = """
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    model(torch.randn(4, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state, "step": step}, checkpoint_id=folder / f"step-{step}")
    loaded = {"model": weights, "optimizer": state, "step": -1}
    dcp.load(loaded, checkpoint_id=folder / f"step-{step}")
    assert loaded["step"] == step
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    dcp.async_save({"model": weights}, checkpoint_id=folder / f"async-{step}").result()
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        assert full["0.weight"].shape == (256, 64)
        torch.save(full, folder / "full.pt")
    set_model_state_dict(model, full, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
"""

GATHERED = """
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.utils import _DistWrapper

mesh = init_device_mesh("cuda", (world,))
fully_shard(model, mesh=mesh)
wrapper = _DistWrapper(None, True, 0)
planner, writer = DefaultSavePlanner(), dcp.FileSystemWriter(folder / "gathered")
planner.set_up_planner(get_model_state_dict(model), is_coordinator=rank == 0)
writer.set_up_storage_writer(rank == 0)
plan = writer.prepare_local_plan(planner.create_local_plan())
plans = wrapper.gather_object(plan)
if rank == 0:
    _, metadata = planner.create_global_plan(plans)
prefixed = writer.prepare_global_plan([plan] * world)[rank]
written = wrapper.gather_object(writer.write_data(prefixed, planner).value())
if rank == 0:
    writer.finish(metadata, written)
"""


@pytest.mark.parametrize("mesh", MESHES)
def test_a_save_and_a_load_are_the_same_whether_all_ranks_run_or_a_few(mesh, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(HEAD + MESHES[mesh] + TRAIN)
    every = capture(script, tmp_path / "all", world_size=8, ranks="all")
    few = capture(script, tmp_path / "few", world_size=8, ranks="auto")
    assert len(few.captured_ranks) < 8
    assert digests(few) == digests(every)
    assert "zeros loaded" in {note.kind for note in few.notes}


def test_a_save_leaves_many_ranks_in_few_classes_and_each_writes_its_own_shards(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(HEAD + "mesh = init_device_mesh('cuda', (world,))\n" + TRAIN)
    trace = capture(script, tmp_path / "checkpoints", world_size=64, num_steps=1)
    assert {cls.ranks for cls in trace.classes} == {(0,), tuple(range(1, 64))}
    written = {path.name for path in (tmp_path / "checkpoints" / "step-0").iterdir()}
    assert written == {".metadata", *(f"__{rank}_0.distcp" for rank in trace.captured_ranks)}


def size_on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


def temporary_file(name: str) -> Path:
    return Path(tempfile.gettempdir(), f"sandtable-{os.getpid()}-{name}")


def test_plans_and_results_may_be_gathered_and_not_sent_back(tmp_path):
    # Megatron-LM decides on each rank what to write, and only makes the metadata of all plans.
    script = tmp_path / "train.py"
    script.write_text(HEAD + GATHERED)
    assert len(capture(script, tmp_path, world_size=8).captured_ranks) < 8
    assert (tmp_path / "gathered" / ".metadata").exists()


@on_gpu()
def test_large_values_that_do_not_exist_take_neither_space_nor_memory() -> None:
    import resource

    import torch

    path = temporary_file("zeros.pt")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    weight = torch.empty(1 << 30, device="cuda")  # 4 GiB
    try:
        torch.save({"weight": weight, "host": weight.cpu(), "small": torch.arange(3)}, path)
        assert path.stat().st_size > 2 * weight.nbytes
        assert size_on_disk(path) < 1 << 20
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB
        loaded = torch.load(path, mmap=True, map_location="cpu")
        assert loaded["weight"].shape == weight.shape
        assert loaded["weight"][-1] == 0
        assert loaded["small"].tolist() == [0, 1, 2]
    finally:
        path.unlink()


@on_gpu()
def test_large_values_that_exist_are_saved_wherever_they_are_not_zero() -> None:
    import torch

    path = temporary_file("data.pt")
    data = torch.zeros(1 << 22)
    data[-1] = 7
    zeros = torch.zeros(1 << 22)
    zeros.fill_(1).zero_()
    stream = io.BytesIO()
    try:
        for target in (path, stream):
            torch.save({"data": data, "zeros": zeros, "ones": torch.ones(1 << 20)}, target)
        stream.seek(0)
        for source in (path, stream):
            loaded = torch.load(source)
            assert torch.equal(loaded["data"], data)
            assert torch.equal(loaded["zeros"], zeros)
            assert torch.equal(loaded["ones"], torch.ones(1 << 20))
    finally:
        path.unlink()


@on_gpu()
def test_unknown_values_overwrite_what_the_host_had() -> None:
    import torch

    host = torch.ones(1 << 20)
    host.copy_(torch.empty(1 << 20, device="cuda"))
    assert not host.any()
    part = torch.ones(3, 1 << 18)
    part[1, 5:].copy_(torch.empty((1 << 18) - 5, device="cuda"))
    assert part.sum() == 2 * (1 << 18) + 5


OWN_READER = """
from torch.distributed.checkpoint.filesystem import FileSystemReader

class Reader(FileSystemReader):
    def read_data(self, plan, planner):
        for item in plan.items:
            self.storage_data[item.storage_index]
        return super().read_data(plan, planner)

mesh = init_device_mesh("cuda", (world,))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    model(torch.randn(4, 64, device="cuda")).sum().backward()
    optimizer.step()
weights = get_model_state_dict(model)
dcp.save(weights, checkpoint_id=folder)
dcp.load(weights, storage_reader=Reader(folder))
"""


def test_a_reader_of_the_script_finds_the_shards_of_a_rehearsal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + OWN_READER)
    trace = capture(tmp_path / "train.py", tmp_path / "saved", world_size=8, num_steps=3)
    assert trace.num_steps == 2
