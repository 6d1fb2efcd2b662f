"""What torch says about the processes of a script: it launches some, one begins to use CUDA, or joins the world."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from multiprocessing.synchronize import Event
from typing import Any

from sandtable.vgpu.child_processes import ChildProcesses
from sandtable.vgpu.failures import script_place
from sandtable.vgpu.process_groups import GroupAnnouncer
from sandtable.vgpu.stop import ProcessRejected

__all__ = ["follow_processes"]

_ELASTIC = "torch.distributed.elastic.multiprocessing.api"


def follow_processes(processes: ChildProcesses, groups: GroupAnnouncer) -> None:
    """Have torch report launches of processes, the first use of CUDA and the making of the world."""
    import torch

    groups.before_world = processes.join_world
    torch._C._cuda_init = _after(processes.before_cuda, torch._C._cuda_init)
    torch.UntypedStorage._share_cuda_ = _reject_sharing  # type: ignore[method-assign]
    _announce_launches(processes)
    _announce_elastic_launches(processes)


def _reject_sharing(storage: Any) -> Any:
    """Reject a tensor on the GPU that goes to another process by a handle of its memory: there is no memory."""
    file, line = script_place()
    raise ProcessRejected(
        "sends a tensor on the GPU to another process",
        file=file,
        line=line,
        remedy="only ranks have a virtual GPU: send a tensor in host memory, and move it in the rank; where a data "
        "loader's workers get the data set, keep that in host memory, or use num_workers=0",
    )


def _announce_launches(processes: ChildProcesses) -> None:
    """Report how many processes `mp.spawn` and `start_processes` start."""
    import torch.multiprocessing

    module = sys.modules["torch.multiprocessing.spawn"]  # the name in the package is the function
    original = module.start_processes
    signature = inspect.signature(original)

    @functools.wraps(original)
    def start_processes(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options)
        given.apply_defaults()
        if given.arguments["fn"].__module__ == _ELASTIC:
            # Workers await an event before they end. The agent sets it when it has the results of all, but those that
            # are not captured have none.
            for argument in given.arguments["args"]:
                if isinstance(argument, Event):
                    argument.set()
        with processes.launching(given.arguments["nprocs"]):
            return original(*args, **options)

    for place in (module, torch.multiprocessing):
        place.start_processes = start_processes  # type: ignore[attr-defined]


def _announce_elastic_launches(processes: ChildProcesses) -> None:
    """Report the command that a script gives to torchrun's own functions, as `tune run` does."""
    from torch.distributed.launcher import api

    original = api.launch_agent

    @functools.wraps(original)
    def launch_agent(config: Any, entrypoint: Any, args: Any, *rest: Any, **options: Any) -> Any:
        if isinstance(entrypoint, str):
            words = [str(word) for word in args if word != "-u"]
            numbers = [f"--nnodes={config.max_nodes}", f"--nproc-per-node={config.nproc_per_node}"]
            processes.programs.start_launcher(["torchrun", *numbers, *words], os.environ)
        return original(config, entrypoint, args, *rest, **options)

    api.launch_agent = launch_agent


def _after(first: Callable[[], None], function: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        function()

    return call
