"""One worker of one run, as a program: `torchrun --nproc-per-node 8 -m sandtable.study.worker OUT/study.json 3`.

Under torchrun it takes its rank from RANK and WORLD_SIZE. On a host of the lab, which has one worker and no torchrun,
it takes it from NODE_RANK and NNODES. The first worker writes the result.
"""

import contextlib
import ctypes
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
from sandtable.events import Event, ignore
from sandtable.study.events import MethodAdvanced, WorkerFailed, encode
from sandtable.study.lean import leave_out_compiler
from sandtable.study.results import merge_workers
from sandtable.study.store import Assignment, write_json
from sandtable.study.training import train

__all__ = ["main"]

_TIMEOUT = timedelta(minutes=30)
"""Sixty workers on two cores take minutes to start; a dead one is noticed by its closed connection, not by this."""

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Train, let rank 0 store the run, and return the exit code; user errors are sent as events."""
    _die_with_parent()
    file, index = Path(arguments[0]), int(arguments[1])
    os.environ.setdefault("RANK", os.environ.get("NODE_RANK", "0"))
    os.environ.setdefault("WORLD_SIZE", os.environ.get("NNODES", "1"))
    torch.set_num_threads(1)
    try:
        assignment = Assignment.load(file)
        dist.init_process_group("gloo", timeout=_TIMEOUT)  # before the compiler is left out, which it may call
        leave_out_compiler()
        _check_size(assignment)
        _run(assignment, index)
    except SandtableError as error:
        print(encode(WorkerFailed(message=str(error))), flush=True)
        return error.exit_code
    dist.destroy_process_group()
    return 0


def _run(assignment: Assignment, index: int) -> None:
    method = assignment.settings.methods[index]
    is_first = dist.get_rank() == 0
    record = train(assignment, index, _print_event if is_first else ignore)
    records: list[Any] | None = [None] * dist.get_world_size() if is_first else None
    dist.gather_object(record, records)
    if records is not None:
        settings = assignment.settings.model_dump(mode="json", exclude={"methods"})
        settings |= {"method": method.model_dump(mode="json"), "torch": torch.__version__}
        run = merge_workers(
            records,
            name=method.name,
            fingerprint=assignment.settings.fingerprint(method),
            settings=settings | dict(record.resolved_settings),
        )
        write_json(assignment.result_file(method), run.to_dict())


def _check_size(assignment: Assignment) -> None:
    expected, started = assignment.settings.workers, dist.get_world_size()
    if expected != started:
        raise StudyError(
            f"there must be {expected} workers, as in {assignment.file}, but {started} were started; "
            f"start {expected}, or prepare the study again with --workers {started}"
        )


def _print_event(event: Event) -> None:
    if isinstance(event, MethodAdvanced):
        print(encode(event), flush=True)


def _die_with_parent() -> None:
    """Ask the kernel to end this process when its launcher ends, by any signal."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
