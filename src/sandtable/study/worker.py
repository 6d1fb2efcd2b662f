"""One worker of one run, as a program: `torchrun --nproc-per-node 8 -m sandtable.study.worker OUT/study.json 3`.

Under torchrun it takes its place from RANK and WORLD_SIZE; on a host of the lab, where one worker is one host and
torchrun would only be a second process, from NODE_RANK and NNODES. The first worker writes the result.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sandtable.errors import SandtableError, StudyError
from sandtable.study.assignment import Assignment, write_whole
from sandtable.study.lean import leave_out_compiler
from sandtable.study.lines import MARK
from sandtable.study.results import run_of_ranks
from sandtable.study.training import train

__all__ = ["main"]

_PATIENCE = timedelta(minutes=30)
"""Sixty workers on two cores take minutes to come in; a dead one is noticed by its closed connection, not by this."""

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Train, and let rank 0 store the run. User errors are one line; the exit code says so."""
    _die_with_parent()
    file, index = Path(arguments[0]), int(arguments[1])
    os.environ.setdefault("RANK", os.environ.get("NODE_RANK", "0"))
    os.environ.setdefault("WORLD_SIZE", os.environ.get("NNODES", "1"))
    torch.set_num_threads(1)
    try:
        assignment = Assignment.load(file)
        dist.init_process_group("gloo", timeout=_PATIENCE)  # asks the compiler, if it is there, to forget things
        leave_out_compiler()
        _check_size(assignment)
        _run(assignment, index)
    except SandtableError as error:
        print(f"{MARK}{json.dumps({'error': str(error)})}", flush=True)
        return error.exit_code
    dist.destroy_process_group()
    return 0


def _run(assignment: Assignment, index: int) -> None:
    method = assignment.settings.methods[index]
    is_first = dist.get_rank() == 0
    seen = train(assignment, index, _tell if is_first else lambda _: None)
    ranks: list[Any] | None = [None] * dist.get_world_size() if is_first else None
    dist.gather_object(seen, ranks)
    if ranks is not None:
        about = assignment.settings.model_dump(mode="json", exclude={"methods"})
        run = run_of_ranks(
            ranks,
            name=method.name,
            fingerprint=assignment.settings.fingerprint(method),
            settings=about | {"method": method.model_dump(mode="json"), "torch": torch.__version__} | ranks[0]["about"],
        )
        write_whole(assignment.result_file(method), run.to_dict())


def _check_size(assignment: Assignment) -> None:
    asked, found = assignment.settings.workers, dist.get_world_size()
    if asked != found:
        raise StudyError(
            f"there must be {asked} workers, as {assignment.file} says, but {found} came; "
            "start as many, or prepare the study again with --workers"
        )


def _tell(what: dict[str, Any]) -> None:
    print(f"{MARK}{json.dumps(what)}", flush=True)


def _die_with_parent() -> None:
    """Ask the kernel to end this process when its launcher goes, by whatever signal."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
