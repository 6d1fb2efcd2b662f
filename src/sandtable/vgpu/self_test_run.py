"""One run of the self-test, in a process of its own: captures the job, checks its trace, and prints what is wrong."""

import sys

from sandtable.cluster import load
from sandtable.errors import SandtableError
from sandtable.vgpu.launcher import Launcher
from sandtable.vgpu.settings import Job

__all__ = ["main"]

_NUM_RANKS = 2
_NUM_STEPS = 2
_CALLS = {"all_reduce", "all_gather", "reduce_scatter"}


def main(core_path: str) -> None:
    """Run the job with this core, and exit with a message if it fails or its trace is wrong."""
    job = Job(
        script="sandtable.vgpu.self_test_job",
        is_module=True,
        world_size=_NUM_RANKS,
        nproc_per_node=_NUM_RANKS,
        cluster=load("dgx-a100", nodes=1),
        num_steps=2 * _NUM_STEPS,  # with DDP and with FSDP
        ranks="all",
    )
    try:
        with Launcher(core_path=core_path) as launcher:
            trace = launcher.launch(job)
    except SandtableError as error:
        sys.exit(" ".join(str(error).split()))
    missing = _CALLS - {call.op for call in trace.rank(0).collectives()}
    if trace.num_steps < _NUM_STEPS or len(trace.classes) != 1 or missing:
        sys.exit(
            f"the trace must have at least {_NUM_STEPS} steps of 1 class of ranks, but it has {trace.num_steps} of "
            f"{len(trace.classes)}; missing collectives: {', '.join(sorted(missing)) or 'none'}"
        )


if __name__ == "__main__":
    main(sys.argv[1])
