"""Host updates: what torch's optimizers do to parameters in host memory.

FSDP's `CPUOffloadPolicy` and Megatron-LM's `--optimizer-cpu-offload` leave parameters, gradients and states on the
host, where an optimizer of torch updates them operator by operator. Here these operators do nothing: they would take
the time of this machine and fill its memory with states. The bytes that they would read and write are the work of the
host (`Work.place`), recorded as one kernel per step. Counters of one element are computed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sandtable.trace.work import Work
from sandtable.units import MIB
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = ["follow_host_updates"]


def follow_host_updates() -> None:
    """Have steps of optimizers that update parameters in host memory be recorded and not computed."""
    original = torch.optim.Optimizer.profile_hook_step

    def hooked(step: Callable[..., Any]) -> Callable[..., Any]:
        whole = original(step)

        @functools.wraps(whole)
        def run(optimizer: Any, *args: Any, **options: Any) -> Any:
            with _update(optimizer):
                return whole(optimizer, *args, **options)

        return run

    torch.optim.Optimizer.profile_hook_step = staticmethod(hooked)  # type: ignore[assignment, method-assign]


def _update(optimizer: Any) -> AbstractContextManager[Any]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"] if _is_here(parameter)]
    if sum(_local(parameter).nbytes for parameter in parameters) < MIB:
        return nullcontext()
    return _HostUpdate(type(optimizer).__name__, parameters)


class _HostUpdate(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of operators on tensors in host memory, which it does not run, until the step ends."""

    def __init__(self, name: str, parameters: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name = name
        self._parameters = parameters
        self._bytes_read = self._bytes_written = 0

    def __exit__(self, *reason: Any) -> None:
        super().__exit__(*reason)  # type: ignore[no-untyped-call]
        if self._bytes_written and reason[0] is None:
            work = Work(place="host", bytes_read=self._bytes_read, bytes_written=self._bytes_written)
            inputs = [_local(parameter) for parameter in self._parameters]
            record_kernel(f"host::{self._name}", inputs=inputs, outputs=(), work=work)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_update = tensors and all(map(_is_here, tensors)) and any(tensor.numel() > 1 for tensor in tensors)
        if not is_update:
            return func(*args, **kwargs)
        written = [leaf for argument in _written(func, args, kwargs) for leaf in tree_leaves(argument)]
        if written:
            results, returned = written, written[0] if func._schema.returns else None
        elif torch.Tag.pointwise in func.tags or func is torch.ops.aten.zeros_like.default:
            results = [torch.empty_like(max(tensors, key=torch.Tensor.numel))]
            returned = results[0]
        elif func.name().startswith("aten::_foreach_") and "norm" not in func.name():
            results = returned = [torch.empty_like(tensor) for tensor in args[0]]
        else:
            return func(*args, **kwargs)
        self._bytes_read += sum(_local(tensor).nbytes for tensor in tensors)
        self._bytes_written += sum(_local(tensor).nbytes for tensor in results)
        return returned


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """Yield the arguments that an operator writes."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[place] if place < len(args) else kwargs.get(argument.name)


def _is_here(tensor: Any) -> bool:
    return bool(tensor.device.type == "cpu")


def _local(tensor: Any) -> Tensor:
    """Return this rank's part of a distributed tensor."""
    local = getattr(tensor, "_local_tensor", tensor)
    return local if isinstance(local, Tensor) else local.wait()
