"""Wrappers: whether DDP gets to see the passes whose gradients it should average.

DDP averages what a backward pass computes if the forward pass before went through it, outside of `no_sync`, and if the
parameters still are what they were when it was made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from sandtable.trace import EventKind, Line
from sandtable.vgpu.failures import is_library
from sandtable.vgpu.observing.events import EventLog, after, before
from sandtable.vgpu.observing.parameters import ParameterWatcher

__all__ = ["WrapperWatcher"]

_MOST_PASSES = 16


class WrapperWatcher:
    """Watches all DDP wrappers of this process."""

    def __init__(self, log: EventLog, parameters: ParameterWatcher) -> None:
        self._log = log
        self._parameters = parameters
        self._wrappers: WeakSet[Any] = WeakSet()
        self._hooked: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
        """The nodes of autograd to which a wrapper has hooked itself, with their parameters."""
        self._passes: dict[int, tuple[dict[str, Any], list[int]]] = {}
        self._num_forwards: dict[int, int] = {}
        self._has_seen_forward: dict[int, bool] = {}
        self._hooks: list[Any] = []
        self._num_passes = 0

    def install(self) -> None:
        """Watch wrappers that are made from now on, and where their modules are moved to."""
        import torch
        from torch.nn.parallel import DistributedDataParallel

        after(DistributedDataParallel, "__init__", self._on_made)
        before(DistributedDataParallel, "_pre_forward", self._on_forward)
        for name in ("to", "cuda", "cpu", "half", "bfloat16", "float", "double", "to_empty"):
            before(torch.nn.Module, name, self._on_moved(name))

    def begin_backward(self) -> None:
        """Note which wrappers will not average what this pass computes."""
        self._num_passes += 1
        if self._num_passes > _MOST_PASSES or not len(self._wrappers):
            return
        for wrapper in list(self._wrappers):
            number = self._log.number_of("wrapper", wrapper)
            facts = self._log.note(
                EventKind.WRAPPER_BACKWARD,
                subject=number,
                has_seen_forward=self._has_seen_forward.get(number, False),
                syncs=bool(wrapper.require_backward_grad_sync),
                optimizers=self._parameters.holders_of(_own(wrapper)),
            )
            self._passes[number] = facts, _versions(wrapper)

    def end_backward(self) -> None:
        """Note whether the pass wrote gradients of a module whose wrapper has not seen the forward pass."""
        if self._num_passes > _MOST_PASSES:
            return
        for wrapper in list(self._wrappers):
            number = self._log.number_of("wrapper", wrapper)
            if number not in self._passes:
                continue
            facts, versions = self._passes.pop(number)
            facts["wrote"] = versions != _versions(wrapper)
            if facts["wrote"] and not facts["has_seen_forward"]:
                self._look_for_forward(wrapper, number)
            self._has_seen_forward[number] = self._has_seen_forward.get(number, False) and not facts["wrote"]

    def _on_made(self, result: None, wrapper: Any, *args: Any, **options: Any) -> None:
        if wrapper._use_python_reducer or self._log.core.is_compiling():
            return
        self._wrappers.add(wrapper)
        self._hooked[wrapper] = [(ref(tensor), _accumulator(tensor)) for tensor in _own(wrapper)]

    def _on_forward(self, wrapper: Any, *args: Any, **options: Any) -> None:
        import torch

        if not torch.is_grad_enabled() or self._log.core.is_compiling():
            return
        number = self._log.number_of("wrapper", wrapper)
        self._has_seen_forward[number] = True
        count = self._num_forwards[number] = self._num_forwards.get(number, 0) + 1
        if count > _MOST_PASSES:
            return
        self._log.note(
            EventKind.FORWARD,
            subject=number,
            wrapper="DistributedDataParallel",
            syncs=bool(wrapper.require_backward_grad_sync),
            unhooked=self._unhooked(wrapper),
        )

    def _unhooked(self, wrapper: Any) -> list[int]:
        """Return the parameters whose gradients the wrapper no longer hears of."""
        pairs = ((tensor(), node) for tensor, node in self._hooked.get(wrapper, ()))
        return [
            self._parameters.index_of(tensor)
            for tensor, node in pairs
            if tensor is not None and tensor.requires_grad and _accumulator(tensor) is not node
        ]

    def _on_moved(self, name: str) -> Callable[..., None]:
        def notice(module: Any, *args: Any, **options: Any) -> None:
            if len(self._wrappers) and not self._log.core.is_compiling():
                for wrapper in list(self._wrappers):
                    if module is wrapper or module is wrapper.module:
                        number = self._log.number_of("wrapper", wrapper)
                        text = ", ".join(str(argument) for argument in args[:1])
                        self._log.note(EventKind.MOVED, subject=number, how=f"{name}({text})")

        return notice

    def _look_for_forward(self, wrapper: Any, number: int) -> None:
        """Note the line of the next forward pass that goes around the wrapper."""
        if self._hooks:
            return

        def notice(module: Any, inputs: Any) -> None:
            import torch

            if not self._hooks or not torch.is_grad_enabled():
                return
            while self._hooks:
                self._hooks.pop().remove()
            place = _caller(set(map(id, wrapper.modules()))) or self._log.place()
            if not self._has_seen_forward.get(number, False):
                self._log.note(EventKind.FORWARD, subject=number, wrapper="inside", file=place.file, line=place.line)

        self._hooks = [module.register_forward_pre_hook(notice) for module in wrapper.module.modules()]


def _own(wrapper: Any) -> Sequence[Any]:
    """Return the parameters that a wrapper averages."""
    ignored = getattr(wrapper, "parameters_to_ignore", ())
    return [
        tensor
        for name, tensor in wrapper.module.named_parameters()
        if tensor.requires_grad and name not in ignored and tensor.is_leaf
    ]


def _accumulator(tensor: Any) -> Any:
    """Return the node of autograd that accumulates the gradient of a leaf."""
    import torch

    with torch.enable_grad():
        return tensor.view_as(tensor).grad_fn.next_functions[0][0]


def _versions(wrapper: Any) -> list[int]:
    """Return how often each gradient has been written."""
    return [0 if tensor.grad is None else int(tensor.grad._version) + 1 for tensor in _own(wrapper)]


def _caller(modules: set[int]) -> Line | None:
    """Return the innermost line of the script that is not inside a method of these modules."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if id(frame.f_locals.get("self")) not in modules and not is_library(frame.f_code.co_filename):
            return Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
        frame = frame.f_back
    return None
