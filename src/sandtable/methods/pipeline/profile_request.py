"""Profile requests: build the model that a request names, make its inputs, and profile it.

`sandtable profile` calls `measure_profile` in its own process on this machine's devices, or runs `__main__` as a script
on a virtual GPU.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from typing import Any

import torch
from torch import Tensor, nn

from sandtable.errors import MethodError
from sandtable.methods.pipeline.profile import profile
from sandtable.methods.pipeline.tracer import Refused
from sandtable.pipeline_profile import Profile, ProfileRequest

__all__ = ["make_input", "measure_profile"]

_INPUT = re.compile(r"(?P<shape>[0-9]+(?:[,x][0-9]+)*)(?::(?P<dtype>[a-z0-9]+))?(?::(?P<below>[0-9]+))?")


def measure_profile(request: ProfileRequest) -> Profile:
    """Build the model that the request names, and profile it on this machine."""
    result = _call(request.function)
    model, inputs, loss = (*result, None, None)[:3] if isinstance(result, tuple) else (result, None, None)
    if not isinstance(model, nn.Module):
        raise MethodError(
            f"{request.function} must return an nn.Module, or a tuple of it, inputs and loss, but returned "
            f"{type(model).__name__}"
        )
    device = _device(request.device)
    if request.inputs:
        inputs = tuple(make_input(text, device=device) for text in request.inputs)
    if inputs is None:
        raise MethodError(
            f"a profile needs a minibatch, but {request.function} returns only the model; add its inputs, as in "
            "--input 64,3,224,224, or --input 8,1024:int64:50257 for numbers below 50257"
        )
    batch = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    for value in batch:
        if not isinstance(value, Tensor):
            raise MethodError(
                f"inputs must be one or more tensors, but {request.function} returns {type(value).__name__} among "
                "them; return them as a tuple, in the order in which the model takes them"
            )
    return _profile(model.to(device), tuple(tensor.to(device) for tensor in batch), loss, request)


def _profile(model: nn.Module, batch: tuple[Tensor, ...], loss: Any, request: ProfileRequest) -> Profile:
    try:
        return profile(model, batch, num_batches=request.num_batches, loss=loss, show_progress=request.show_progress)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        shapes = ", ".join(f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in batch)
        raise MethodError(
            f"a model must accept its inputs, but {request.function} does not accept {shapes}: {Refused('', error)}; "
            "give others with --input"
        ) from error


def make_input(text: str, *, device: str = "cpu") -> Tensor:
    """Return an input of that shape with random values: normal, or integers from 0 to below the bound."""
    match = _INPUT.fullmatch(text.strip())
    dtype = getattr(torch, match["dtype"] or "float32", None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise MethodError(
            f"an input must be a shape, optionally with a type and a bound, but got '{text}'; "
            "for example 64,3,224,224 or 8,1024:int64:50257"
        )
    shape = [int(part) for part in re.split("[,x]", match["shape"])]
    try:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(shape, dtype=dtype, device=device)
        return torch.randint(int(match["below"] or 2), shape, dtype=dtype, device=device)
    except RuntimeError as error:  # a bound of 0, or above what the type holds; a type without random numbers
        raise MethodError(
            f"an input must have random values of its type below its bound, but '{text}' has none: "
            f"{str(error).splitlines()[0]}; for example 8,1024:int64:50257"
        ) from error


def _device(name: str) -> str:
    has_gpu = torch.cuda.is_available()
    if name not in ("auto", "cpu", "cuda") or (name == "cuda" and not has_gpu):
        available = "cpu or cuda" if has_gpu else "cpu, since torch finds no GPU"
        raise MethodError(
            f"the device must be available here ({available}), but got '{name}'; for a card that is not, give --cluster"
        )
    return ("cuda" if has_gpu else "cpu") if name == "auto" else name


def _call(function: str) -> Any:
    """Call `module:name`; the working directory is on the module search path."""
    module_name, _, name = function.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        build = getattr(importlib.import_module(module_name), name) if name else None
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        build = None
    except AttributeError:
        build = None
    if not callable(build):
        raise MethodError(
            f"a function must return the model, given as MODULE:FUNCTION, but there is no '{function}'; "
            "for example models:vgg16, with models.py in this directory"
        )
    try:
        inspect.signature(build).bind()
    except TypeError as error:
        raise MethodError(
            f"the function that returns the model is called without arguments, but {function} needs some: {error}; "
            "give one that calls it"
        ) from error
    except ValueError:  # some C functions have no signature
        pass
    return build()
