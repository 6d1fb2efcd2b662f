"""Ranks that find each other through mpi4py, which need not be installed."""

import os

import pytest
import torch
import torch.distributed as dist
from tests.vgpu.virtual import rehearse


def find_each_other() -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    assert world.Get_rank() == int(os.environ["RANK"])
    print(world.bcast({"root": world.rank}, root=1), world.allgather("x" * world.rank), world.allreduce(2))
    print(world.allreduce(world.rank, op=MPI.MAX), world.scatter(["a", "b"] if world.rank == 0 else None))
    world.Barrier()
    assert MPI.COMM_SELF.Get_size() == 1
    with pytest.raises(NotImplementedError, match="MPI's Split is not rehearsed"):
        world.Split(0)
    dist.init_process_group("nccl")
    total = torch.ones(1, device="cuda:" + os.environ["LOCAL_RANK"])
    dist.all_reduce(total)
    assert total.item() == world.size


def be_alone() -> None:
    try:
        from mpi4py import MPI
    except ModuleNotFoundError:
        print(1)
    else:
        print(MPI.COMM_WORLD.Get_size())


@pytest.fixture
def started_by_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")


def test_a_rank_that_mpi_did_not_start_is_alone() -> None:
    assert [text for _, text in rehearse(be_alone, ranks=2).out] == ["1", "1"]


@pytest.mark.usefixtures("started_by_mpi")
def test_objects_travel_between_ranks_before_torch_is_initialised() -> None:
    done = rehearse(find_each_other, ranks=2)
    assert sorted(text for _, text in done.out) == [
        "1 a",
        "1 b",
        "{'root': 1} ['', 'x'] 4",
        "{'root': 1} ['', 'x'] 4",
    ]


def find_each_other_by_name() -> None:
    from mpi4py import MPI

    assert len(MPI.COMM_WORLD.allgather("rank" * MPI.COMM_WORLD.rank)) == 8


@pytest.mark.usefixtures("started_by_mpi")
def test_a_rank_stands_for_others_though_their_objects_differ_in_size() -> None:
    done = rehearse(find_each_other_by_name, ranks=8, captured="auto")
    assert len(done.trace.captured_ranks) < 8
