"""Work that a script submits to other threads: its place in the trace, and which thread waits for it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.vgpu.virtual import Rehearsal, rehearse

from sandtable.cluster import load
from sandtable.engine import simulate
from sandtable.trace import Kind, SyncKind

CUDA = "cuda"


def facts(found: Rehearsal, rank: int = 0) -> list[str]:
    """Operators by name, and waits of the host by what they are for."""
    view = found.trace.rank(rank)
    names = iter([operator.signature.op for operator in view.operators()])
    rows = zip(view.records.kind.tolist(), view.records.value.tolist(), strict=True)
    return [
        next(names) if kind == Kind.OPERATOR else f"wait for {SyncKind(value).name}"
        for kind, value in rows
        if kind in (Kind.OPERATOR, Kind.HOST_SYNC)
    ]


def hand_over(late: bool) -> None:
    values, stream, gate = torch.ones(5000, device=CUDA), torch.cuda.Stream(), threading.Event()

    def job() -> torch.Tensor:
        gate.wait()
        with torch.cuda.stream(stream):
            found = values.exp()
            stream.synchronize()
        return found

    future = ThreadPoolExecutor(1).submit(job)
    if not late:
        gate.set()
        time.sleep(0.1)
    values.sin()
    gate.set()
    future.result().cos()


@pytest.mark.parametrize("late", [False, True])
def test_a_job_stands_where_it_was_handed_over_and_is_waited_for_where_its_result_is_taken(late: bool) -> None:
    found = facts(rehearse(hand_over, arguments={"late": late}))
    order = [found.index(next(fact for fact in found if name in fact)) for name in ("exp", "sin", "EVENT", "cos")]
    assert order == sorted(order)
    assert not any("STREAM" in fact for fact in found)


class Trainer:
    """Steps on whatever values there are."""

    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.ones(64, 64, device=CUDA))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)

    def step(self, values: Any) -> None:
        (values.view(64, 64) @ self.weight).sum().backward()
        self.optimizer.step()


def listen_from_the_beginning() -> None:
    dist.init_process_group("nccl")
    quiet = dist.new_group(backend="gloo")
    other = 1 - dist.get_rank()
    word = torch.zeros(1)
    ear = threading.Thread(target=lambda: dist.recv(word, group=quiet, group_src=other))
    ear.start()
    trainer = Trainer()
    for _ in range(2):
        values = torch.ones(4096, device=CUDA)
        dist.all_reduce(values)
        trainer.step(values)
    dist.send(torch.ones(1), group=quiet, group_dst=other)
    ear.join()
    assert word.item() == 1


def test_a_thread_that_listens_from_the_beginning_holds_nobody_up() -> None:
    found = rehearse(listen_from_the_beginning, ranks=2)
    assert simulate(found.trace, load("dgx-a100", nodes=1)).step_ns > 0


def pass_around() -> None:
    # From torch 2.14 on only the lazy backend connects pairs; the usual one may be the lazy one's eager sibling.
    dist.init_process_group("nccl-lazy" if hasattr(dist.distributed_c10d, "ProcessGroupNCCLLazy") else "nccl")
    rank, size, trainer = dist.get_rank(), dist.get_world_size(), Trainer()
    for _ in range(2):
        mine, theirs = torch.ones(4096, device=CUDA), torch.empty(4096, device=CUDA)
        works: list[Any] = [dist.irecv(theirs, (rank - 1) % size), dist.isend(mine, (rank + 1) % size)]
        for work in works:
            work.wait()
        trainer.step(theirs)


def test_single_messages_of_different_pairs_do_not_wait_for_each_other() -> None:
    # NCCL has a communicator for each pair then. In one queue everybody would wait for the one before.
    found = rehearse(pass_around, ranks=3)
    assert simulate(found.trace, load("dgx-a100", nodes=1)).step_ns > 0
