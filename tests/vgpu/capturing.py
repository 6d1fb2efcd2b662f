"""Captures for tests: a script on virtual GPUs, as `sandtable run` would run it."""

from pathlib import Path
from typing import Literal

from tests.vgpu.virtual import on_shared_launcher

from sandtable.cluster import load
from sandtable.trace import Trace
from sandtable.vgpu import Job, Routing

EXAMPLES = Path(__file__).parents[2] / "examples"
GPUS_PER_NODE = 8


def capture(
    script: str | Path,
    *flags: object,
    world_size: int,
    num_steps: int = 2,
    ranks: Literal["auto", "all"] | tuple[int, ...] = "auto",
    routing: str = "balanced",
) -> Trace:
    """The trace of an example, named by its file, or of a script, given by its path."""
    per_node = min(GPUS_PER_NODE, world_size)
    job = Job(
        script=str(EXAMPLES / script),
        script_args=tuple(map(str, flags)),
        world_size=world_size,
        nproc_per_node=per_node,
        cluster=load("dgx-a100", nodes=world_size // per_node),
        num_steps=num_steps,
        ranks=ranks,
        routing=Routing.parse(routing),
    )
    with on_shared_launcher() as launcher:
        return launcher.launch(job)
