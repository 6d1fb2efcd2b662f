"""Adaptations: the few functions of torch that behave differently in a rehearsal."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sandtable.units import MIB
from sandtable.vgpu.compatibility import apply_function

__all__ = ["adapt"]

_LARGE_WEIGHT_BYTES = MIB


def adapt(core: ModuleType, *, has_values: bool = False) -> None:
    """Replace these functions in this process; with `has_values` only those that do not leave values out."""
    import torch

    # Backward then runs on the thread that calls it. On its own thread it would free its last tensors at a moment that
    # differs from run to run, and the records of equal ranks would differ.
    torch._C._set_multithreading_enabled(False)
    _prefer_fake_kernels()
    _shift_flags()
    _follow_functions(core)
    if not has_values:
        _leave_large_host_weights(core)
        _load_no_large_host_weights(core)
        _iterate_to_the_end(core)
    _fuse_no_torchscript()
    torch.UntypedStorage.resize_ = _resize(core, torch.UntypedStorage.resize_)  # type: ignore[method-assign]
    torch.UntypedStorage.__new__ = _new_storage(torch.UntypedStorage.__new__)  # type: ignore[method-assign]
    torch.UntypedStorage._write_file = _write_values(torch.UntypedStorage._write_file)  # type: ignore[method-assign]
    torch.UntypedStorage._set_from_file = _read_values(torch.UntypedStorage._set_from_file)  # type: ignore[method-assign]
    torch.UntypedStorage.cpu = _to_host(core, torch.UntypedStorage.cpu)  # type: ignore[method-assign]


def _prefer_fake_kernels() -> None:
    """Use a custom operator's fake kernel, which knows the shapes, in place of its kernel for the card."""
    from torch._library.custom_ops import CustomOpDef

    register = CustomOpDef.register_kernel

    def register_kernel(self: Any, device_types: Any, fn: Any = None, /) -> Any:
        requested = [device_types] if isinstance(device_types, str) else device_types
        kept = None if requested is None else [device for device in requested if device != "cuda"]
        if kept == []:
            return (lambda function: function) if fn is None else fn
        return register(self, kept, fn)

    CustomOpDef.register_kernel = register_kernel  # type: ignore[method-assign]


def _shift_flags() -> None:
    """Let flags be shifted into an integer, which all devices do and only torch's Meta kernels refuse."""
    import torch

    torch._meta_registrations.shift_dtype_check = lambda name, flags, places: None


def _follow_functions(core: ModuleType) -> None:
    """Mark calls of autograd functions, whose forward turns gradients off.

    Inside backward, only the call itself shows that it is part of a forward pass done again.
    """
    from torch.autograd import Function

    original = apply_function(Function)

    @functools.wraps(original)
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not core.begin_function():
            return original(cls, *args, **kwargs)
        try:
            return original(cls, *args, **kwargs)
        finally:
            core.end_function()

    Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]


def _fuse_no_torchscript() -> None:
    """Have functions of `torch.jit.script` run their operators one by one: fused, NVRTC would compile them for a card.

    Scripts turn the fusers on themselves, too, so the switches do nothing from here on.
    """
    import torch

    for name in ("_jit_set_texpr_fuser_enabled", "_jit_override_can_fuse_on_gpu"):
        switch = getattr(torch._C, name)
        switch(False)
        setattr(torch._C, name, functools.wraps(switch)(lambda is_enabled: None))


def _iterate_to_the_end(core: ModuleType) -> None:
    """Have LBFGS use all its iterations: whether it converges earlier depends on values that are not there."""
    from torch.optim import LBFGS

    original: Callable[..., Any] = LBFGS.step

    @functools.wraps(original)
    def step(self: Any, closure: Any) -> Any:
        core.note("LBFGS", "each step was taken to use all of its iterations (max_iter)")
        group = self.param_groups[0]
        tolerances = {name: group[name] for name in ("tolerance_grad", "tolerance_change")}
        group.update(dict.fromkeys(tolerances, -math.inf))
        try:
            return original(self, closure)
        finally:
            group.update(tolerances)

    LBFGS.step = step  # type: ignore[method-assign]


def _leave_large_host_weights(core: ModuleType) -> None:
    """Do not fill large weights on the host with initial values: their pages then never take memory.

    Scripts build the model on the host and move it to the card, where large values do not exist anyway. Weights are
    what `torch.nn.init` is given, and parameters; other tensors are data, and are filled whatever their size.
    """
    import torch

    fills: list[None] = []

    def leaving(fill: Callable[..., Any], kind: type[torch.Tensor]) -> Callable[..., Any]:
        @functools.wraps(fill)
        def fill_small(tensor: Any, *args: Any, **options: Any) -> Any:
            is_weight = isinstance(tensor, kind) and tensor.is_cpu
            if not is_weight or tensor.nbytes <= _LARGE_WEIGHT_BYTES:
                return fill(tensor, *args, **options)
            fills.append(None)
            seed = zlib.crc32(torch.get_rng_state().numpy().tobytes())
            core.name_host_numbers(tensor, seed << 32 | len(fills))
            if len(fills) == 1:
                core.note("host weights", "initial values of large weights on the host were left out, here and later")
            return tensor

        return fill_small

    for name in torch.nn.init.__all__:
        if name.endswith("_"):
            setattr(torch.nn.init, name, leaving(getattr(torch.nn.init, name), torch.Tensor))
    for name in ("normal_", "uniform_"):
        setattr(torch.Tensor, name, leaving(getattr(torch.Tensor, name), torch.nn.Parameter))


def _load_no_large_host_weights(core: ModuleType) -> None:
    """Do not copy large weights of a checkpoint into a model on the host, for the same reason.

    `load_state_dict` still checks names and shapes: it copies each of these parameters to itself, which does nothing.
    """
    from torch.nn import Module

    original = Module._load_from_state_dict
    said: list[bool] = []

    @functools.wraps(original)
    def load(self: Any, state_dict: Any, prefix: str, *args: Any) -> Any:
        large = {
            prefix + name: parameter
            for name, parameter in self._parameters.items()
            if parameter is not None and parameter.is_cpu and parameter.nbytes > _LARGE_WEIGHT_BYTES
        }
        loaded = {name: state_dict[name] for name in large if _fits(state_dict.get(name), large[name])}
        if loaded and not said:
            said.append(True)
            core.note("host weights", "large weights of checkpoints were not copied into models on the host")
        state_dict.update({name: large[name] for name in loaded})
        try:
            return original(self, state_dict, prefix, *args)
        finally:  # hooks of the module may have renamed some
            state_dict.update({name: value for name, value in loaded.items() if state_dict.get(name) is large[name]})

    Module._load_from_state_dict = load  # type: ignore[method-assign, assignment]


def _fits(value: Any, parameter: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_cpu and value.shape == parameter.shape


def _new_storage(original: Callable[..., Any]) -> Callable[..., Any]:
    def new(cls: Any, *args: Any, device: Any = None, **options: Any) -> Any:
        import torch

        if device is None or torch.device(device).type != "cuda" or not args or not isinstance(args[0], int):
            return original(cls, *args, **options) if device is None else original(cls, *args, device=device, **options)
        return torch.empty(args[0], dtype=torch.uint8, device=device).untyped_storage()

    return new


def _write_values(original: Callable[..., Any]) -> Callable[..., Any]:
    """Have ``pickle`` and the old file format write a virtual storage's values, which are not at its address."""

    def write_file(self: Any, *args: Any) -> Any:
        return original(self.cpu() if self.device.type == "cuda" else self, *args)

    return write_file


def _read_values(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_from_file(self: Any, *args: Any) -> Any:
        if self.device.type != "cuda":
            return original(self, *args)
        host = type(self)(self.nbytes())
        original(host, *args)
        return self.copy_(host)

    return set_from_file


def _resize(core: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    def resize_(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return original(self, size)
        core.resize_storage(self, int(size))
        return self

    return resize_


def _to_host(core: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    def cpu(self: Any) -> Any:
        import torch

        if self.device.type != "cuda":
            return original(self)
        view = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
        if not core.has_exact_value(view):
            core.note("zeros saved", "a tensor whose values are unknown was written or copied out as zeros")
        return view.cpu().untyped_storage()

    return cpu
