"""Ranks of a node that wait for each other in memory with a name, where only some ranks would run."""

import multiprocessing.shared_memory
import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tests.vgpu.virtual import on_shared_launcher

from sandtable.cluster import load as load_cluster
from sandtable.vgpu import Job
from sandtable.vgpu.node_memory import follow_node_memory

SCRIPT = """
import os, sys, time
from multiprocessing.shared_memory import SharedMemory
import torch, torch.distributed as dist

dist.init_process_group("nccl")
local_rank, per_node = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
ready = f"{sys.argv[1]}/ready-{os.environ['GROUP_RANK']}"  # what Composer waits for
if local_rank == 0:
    open(ready, "w").close()
give_up = time.monotonic() + 30
while not os.path.exists(ready):
    assert time.monotonic() < give_up, "the first rank's file never came"
    time.sleep(0.1)
dist.barrier()
if local_rank == 0:
    os.remove(ready)
if local_rank == 0:
    board = SharedMemory("board", create=True, size=per_node)
while local_rank:
    try:
        board = SharedMemory("board")
        break
    except FileNotFoundError:
        time.sleep(0.01)
board.buf[local_rank] = 1
while bytes(board.buf[:per_node]) != bytes([1] * per_node):
    time.sleep(0.01)
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(4, 8, device="cuda")).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
board.close()
"""


@pytest.mark.parametrize(("num_nodes", "most_captured"), [(1, 8), (16, 64)])
def test_all_ranks_of_a_node_run_if_they_share_memory_by_name(tmp_path, num_nodes, most_captured):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    job = Job(
        script=str(script),
        script_args=(str(tmp_path),),
        world_size=8 * num_nodes,
        nproc_per_node=8,
        cluster=load_cluster("dgx-a100", nodes=num_nodes),
        num_steps=2,
    )
    with on_shared_launcher() as launcher:
        trace = launcher.launch(job)
    assert trace.world_size == 8 * num_nodes
    assert 8 <= len(trace.captured_ranks) <= most_captured
    assert os.listdir(tmp_path) == ["train.py"]
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("sandtable-")]


def test_memory_that_another_rank_has_created_without_its_size_yet_is_waited_for(tmp_path, monkeypatch):
    shared_memory = multiprocessing.shared_memory.SharedMemory
    monkeypatch.setattr(shared_memory, "__init__", shared_memory.__init__)
    task: Any = SimpleNamespace(records_path=str(tmp_path / "records"), settings=SimpleNamespace(group_rank=0))
    channel: Any = SimpleNamespace(is_forked=False, report=lambda message: None)
    follow_node_memory(lambda: task, channel)
    board = shared_memory("board", create=True, size=64)
    path = f"/dev/shm/{board.name}"
    os.truncate(path, 0)
    later = threading.Timer(0.2, os.truncate, (path, 64))
    later.start()
    reader = shared_memory("board")
    assert reader.size == 64
    later.join()
    for memory in (reader, board):
        memory.close()
    board.unlink()
