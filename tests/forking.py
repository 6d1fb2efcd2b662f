"""Processes for tests, forked from one server that has imported what they need: torch takes seconds, a fork none.

`context()` makes processes as `multiprocessing` does. There is one server for each process of pytest, whoever starts
it, so all tests have the same list of modules.
"""

import multiprocessing
from multiprocessing.context import ForkServerContext

__all__ = ["context"]

_MODULES = [
    "torch",
    "torch.distributed",
    "torch._dynamo",  # the first optimizer of a process imports it
    "torch.distributed.fsdp",
    "torch.distributed.launcher.api",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "sandtable.methods.data",
    "sandtable.methods.pipeline",
    "sandtable.methods.server",
    "sandtable.methods.tensor",
]


def context() -> ForkServerContext:
    """The start method, with its server told what to import."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(_MODULES)
    return found
