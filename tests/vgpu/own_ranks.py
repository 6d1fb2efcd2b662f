"""Captures scripts that no launcher tells a rank, as `sandtable run -- python script.py` does."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.vgpu.virtual import on_shared_launcher

from sandtable.cluster import load as load_cluster
from sandtable.errors import ScriptError
from sandtable.events import Event, Noticed, RankPrinted
from sandtable.launch import FixedEnvironment
from sandtable.trace import Trace
from sandtable.vgpu import CaptureResult, Job

TRAIN = """
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank, world_size, steps=5):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=world_size)
    device = rank % torch.cuda.device_count()
    model = DistributedDataParallel(nn.Linear(16, 16).to(device), device_ids=[device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(4, 16, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""
"""What most scripts below begin with."""


@dataclass
class Captured:
    """The result of a capture, and what its processes printed as (rank, text)."""

    result: CaptureResult
    lines: list[tuple[int, str]]
    notices: list[str]

    @property
    def trace(self) -> Trace:
        assert self.result.error is None, self.result.error
        return self.result.trace

    @property
    def error(self) -> ScriptError:
        assert isinstance(self.result.error, ScriptError)
        return self.result.error


def capture(
    script: Path, *args: str, nodes: int = 1, ranks: Literal["auto", "all"] = "auto", steps: int = 2
) -> Captured:
    """Captures the script, one process per node to begin with."""
    job = Job(
        script=str(script),
        script_args=args,
        world_size=nodes,
        nproc_per_node=1,
        cluster=load_cluster("dgx-a100", nodes=nodes),
        num_steps=steps,
        ranks=ranks,
        launcher_environment=FixedEnvironment(),
    )
    lines: list[tuple[int, str]] = []
    notices: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, RankPrinted) and not event.is_error:
            lines.append((event.rank, event.text))
        elif isinstance(event, Noticed):
            notices.append(event.text)

    with on_shared_launcher() as launcher:
        return Captured(result=launcher.capture(job, listen=listen), lines=lines, notices=notices)


def write_script(directory: Path, body: str, *, head: str = TRAIN) -> Path:
    """Writes a script: `head`, then `body` under the usual guard of the main module if it has no other code."""
    path = directory / "train.py"
    path.write_text(head + textwrap.dedent(body))
    return path


def line_of(script: Path, text: str) -> int:
    """The number of the first line that contains the text."""
    return next(number for number, line in enumerate(script.read_text().splitlines(), 1) if text in line)
