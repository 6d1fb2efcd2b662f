"""Files that one rank makes and another relies on are there, whichever ranks run, and none is left behind."""

import os
from pathlib import Path

import pytest
from tests.vgpu.capturing import capture

from sandtable.vgpu.shared_files import SharedFiles

SCRIPT = """
import os, sys, time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Linear(8, 8, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
folder = Path(sys.argv[1])
temporary = folder / "step0-tmp"
if rank == 0:
    temporary.mkdir()
    (temporary / "names.txt").write_text("one two")
dist.barrier()
give_up = time.monotonic() + 10
while not temporary.exists():
    assert time.monotonic() < give_up, "the directory of rank 0 never came"
    time.sleep(0.1)
assert (temporary / "names.txt").read_text() == "one two"
(temporary / f"rank{rank}").write_text("mine")
dist.barrier()
if rank == 0:
    temporary.replace(folder / "step0")
dist.barrier()
assert (folder / "step0").exists()
for _ in range(3):
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
"""

RESUMES = """
import os, sys
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Linear(8, 8, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
checkpoint = Path(sys.argv[1]) / "checkpoint"
dist.barrier()
if checkpoint.is_dir():
    dist.broadcast(model.weight.data, src=0)
for step in range(3):
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
    if step == 0:
        checkpoint.mkdir(exist_ok=True)
        (checkpoint / f"rank{dist.get_rank()}").write_text("weights")
"""

AGAIN = """
import os, sys
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
saved = Path(sys.argv[1]) / f"rank{rank}.pt"
assert not saved.exists(), "a checkpoint of the same run"
stages = [None] * world
dist.all_gather_object(stages, rank)
torch.save({}, saved)
model = torch.nn.Linear(8 * (1 + sum(stages)), 8, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tensor = torch.ones(4, device="cuda")
for _ in range(3):
    # Rank 0 learns here that rank 1 does other work, after it was answered in its place.
    dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    model(torch.randn(4, model.in_features, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("world_size", [2, 16])
def test_a_rank_that_runs_later_finds_what_an_earlier_one_has_renamed(tmp_path: Path, world_size: int) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    folder = tmp_path / "out"
    folder.mkdir()
    assert capture(tmp_path / "train.py", folder, world_size=world_size).num_steps == 2
    assert [path.name for path in folder.iterdir()] == ["step0"]


def test_a_rank_that_runs_later_does_not_resume_from_the_checkpoint_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RESUMES)
    trace = capture(tmp_path / "train.py", tmp_path, world_size=8)
    assert trace.num_steps == 2
    assert trace.captured_ranks == tuple(range(8))  # together


def test_a_rank_that_runs_again_does_not_find_its_own_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(AGAIN)
    assert capture(tmp_path / "train.py", tmp_path, world_size=2).num_steps == 2


def test_what_was_put_back_is_taken_away_with_all_that_was_added(tmp_path: Path) -> None:
    files = SharedFiles()
    folder = tmp_path / "tmp"
    large = 5 << 20
    contents = [(str(folder), None), (str(folder / "small"), b"text"), (str(folder / "large"), large)]
    files.add_removed(contents)
    assert files.are_contended
    files.restore()
    assert (folder / "small").read_bytes() == b"text"
    assert (folder / "large").stat().st_size == large
    (folder / "of a later rank").write_text("x")
    files.remove()
    assert not folder.exists()
    assert not files.are_contended


def test_what_was_there_before_is_neither_overwritten_nor_removed(tmp_path: Path) -> None:
    files = SharedFiles()
    (tmp_path / "kept").write_text("of the user")
    files.add_removed([(str(tmp_path / "kept"), b"other")])
    files.restore()
    files.remove()
    assert (tmp_path / "kept").read_text() == "of the user"
    assert os.listdir(tmp_path) == ["kept"]
