"""Preload: puts the virtual GPU under torch, before anything asks torch for CUDA.

Order matters. The core registers CUDA's hooks, device guard, allocator and kernels when it is loaded, and torch caches
the hooks on first use; so torch's libraries come first, then the core, then ``import torch``. The Python half follows
while torch is being imported: see `_Trigger`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib.machinery import ModuleSpec
from types import ModuleType

from sandtable.errors import BuildError
from sandtable.vgpu.compatibility import NCCL_GROUPS, remove_python_kernels, torch_directory

__all__ = ["DRIVER_LIBRARIES", "UnloadableCoreError", "load", "loaded_core"]

DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
"""NVIDIA's driver, whose place is taken so that nothing reaches the real one; they lie beside the core."""

_LIBRARIES = ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so", "libtorch_python.so")

# Modules that training scripts import sooner or later: imported once here, every forked rank has them at no cost.
_COMMON_MODULES = (
    "torch",
    "torch.distributed",
    "torch.distributed.tensor",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "torch.distributed.optim",
    "torch.nn.parallel",
    "torch.utils.data.distributed",
    "torch.utils.checkpoint",
    "torch._dynamo",
    "torch._meta_registrations",
    "torch._decomp",
)

_CORE_NAME = "sandtable_core"


class UnloadableCoreError(BuildError):
    """A core that is intact, but was built for another machine."""


def load(core_path: str) -> None:
    """Load the core and torch into this process."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    libraries = torch_directory() / "lib"
    for library in DRIVER_LIBRARIES:
        ctypes.CDLL(os.path.join(os.path.dirname(core_path), library))
    for library in _LIBRARIES:
        ctypes.CDLL(str(libraries / library), mode=ctypes.RTLD_GLOBAL)
    try:
        ctypes.CDLL(core_path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise UnloadableCoreError(f"the virtual GPU's library must load, but it does not: {error}") from error
    sys.meta_path.insert(
        0,
        _Trigger(
            {
                "torch.cuda": lambda: _install_cuda_api(core_path),
                "torch.distributed.distributed_c10d": _install_groups,
            }
        ),
    )
    for name in _COMMON_MODULES:
        importlib.import_module(name)
    import torch

    from sandtable.vgpu import shape_functions

    remove_python_kernels()
    shape_functions.install(loaded_core())
    torch.set_num_threads(1)
    # After a fork, torch makes its thread pool anew at the next call. Autograd threads make that call at the same time,
    # and some would find no pool; so it is made before they start.
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(torch.get_num_threads()))
    gc.collect()
    gc.freeze()


def loaded_core() -> ModuleType:
    """Return the core that `load` put in place."""
    core = sys.modules.get(_CORE_NAME)
    if core is None:
        raise BuildError("the virtual GPU must be loaded before it is used; call sandtable.vgpu.preload.load first")
    return core


class _Trigger:
    """A finder that finds nothing, but runs an action just before a module is imported for the first time."""

    def __init__(self, actions: dict[str, Callable[[], None]]) -> None:
        self._actions = actions

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        action = self._actions.pop(name, None)
        if action is not None:
            action()
        return None


def _install_cuda_api(core_path: str) -> None:
    from sandtable.vgpu import cuda_api

    spec = importlib.util.spec_from_file_location(_CORE_NAME, core_path)
    assert spec is not None
    assert spec.loader is not None
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    sys.modules[_CORE_NAME] = core
    core.register_kernels()
    cuda_api.install(sys.modules["torch._C"], core)
    version = importlib.import_module("torch.version")
    if version.cuda is None:
        version.cuda = "13.0"  # type: ignore[attr-defined]


def _install_groups() -> None:
    core = loaded_core()
    core.bind_groups()
    c10d = importlib.import_module("torch._C._distributed_c10d")
    for name in (*NCCL_GROUPS, "ProcessGroupGloo"):
        setattr(c10d, name, getattr(core, name))
    c10d._DEFAULT_PG_NCCL_TIMEOUT = timedelta(minutes=10)  # type: ignore[attr-defined]
