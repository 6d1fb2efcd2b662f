"""A profile as a program: `python -m sandtable.methods.pipeline.profile_job JOB`, where JOB is a `ProfileJob` as JSON.

`sandtable profile` runs it, in its own process on the machine's devices, or as a script on virtual GPUs.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sandtable.errors import MethodError
from sandtable.methods.pipeline.profile import profile
from sandtable.methods.pipeline.profile_file import Profile
from sandtable.methods.pipeline.refused import Refused

__all__ = ["ProfileJob", "main", "make_input", "run_job"]

_INPUT = re.compile(r"(?P<shape>[0-9]+(?:[,x][0-9]+)*)(?::(?P<dtype>[a-z0-9]+))?(?::(?P<below>[0-9]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileJob:
    """`function` (module:name) gives the model; or model and inputs; or model, inputs and loss."""

    function: str
    inputs: tuple[str, ...] = ()
    """Shape, and if need be type and bound: `64,3,224,224`, `8,1024:int64:50257`."""
    num_batches: int = 10
    device: str = "auto"
    """cpu, cuda, or auto: cuda where there is a GPU."""
    out: str
    show_progress: bool = True


def run_job(job: ProfileJob) -> Profile:
    """Make the model, profile it, write the file."""
    given = _call(job.function)
    model, inputs, loss = (*given, None, None)[:3] if isinstance(given, tuple) else (given, None, None)
    if not isinstance(model, nn.Module):
        raise MethodError(
            f"{job.function} must give an nn.Module, or it with inputs and loss, but gave {type(model).__name__}"
        )
    device = _device(job.device)
    if job.inputs:
        inputs = tuple(make_input(text, device=device) for text in job.inputs)
    if inputs is None:
        raise MethodError(
            f"a profile needs a minibatch, but {job.function} gives the model alone; add its inputs, as in --input "
            "64,3,224,224, or --input 8,1024:int64:50257 for numbers below 50257"
        )
    batch = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    for each in batch:
        if not isinstance(each, Tensor):
            raise MethodError(
                f"inputs must be a tensor or several, but {job.function} gives {type(each).__name__} among them; give "
                "them as a tuple, in the order in which the model takes them"
            )
    found = _profiled(model.to(device), tuple(each.to(device) for each in batch), loss, job)
    found.save(job.out)
    return found


def _profiled(model: nn.Module, batch: tuple[Tensor, ...], loss: Any, job: ProfileJob) -> Profile:
    try:
        return profile(model, batch, num_batches=job.num_batches, loss=loss, show_progress=job.show_progress)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        shapes = ", ".join(f"{tuple(each.shape)} {str(each.dtype).removeprefix('torch.')}" for each in batch)
        raise MethodError(
            f"a model must take its inputs, but {job.function} does not take {shapes}: {Refused('', error)}; "
            "give others with --input"
        ) from error


def make_input(text: str, *, device: str = "cpu") -> Tensor:
    """An input of that shape with random values: normal ones, or whole numbers from 0 up to below the bound."""
    found = _INPUT.fullmatch(text.strip())
    dtype = getattr(torch, found["dtype"] or "float32", None) if found else None
    if found is None or not isinstance(dtype, torch.dtype):
        raise MethodError(
            f"an input must be a shape, and if need be a type and a bound, but got '{text}'; "
            "for example 64,3,224,224 or 8,1024:int64:50257"
        )
    shape = [int(part) for part in re.split("[,x]", found["shape"])]
    try:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(shape, dtype=dtype, device=device)
        return torch.randint(int(found["below"] or 2), shape, dtype=dtype, device=device)
    except RuntimeError as error:  # a bound of 0, or above what the type holds; a type without random numbers
        raise MethodError(
            f"an input must have random values of its type below its bound, but for '{text}' there are none: "
            f"{str(error).splitlines()[0]}; for example 8,1024:int64:50257"
        ) from error


def _device(name: str) -> str:
    has_gpu = torch.cuda.is_available()
    if name not in ("auto", "cpu", "cuda") or (name == "cuda" and not has_gpu):
        there = "cpu or cuda" if has_gpu else "cpu, since torch finds no GPU"
        raise MethodError(
            f"a device must be one that is here ({there}), but got '{name}'; for a card that is not here give --cluster"
        )
    return ("cuda" if has_gpu else "cpu") if name == "auto" else name


def _call(function: str) -> Any:
    """What `module:name` gives; modules are looked for in the working directory, too."""
    module_name, _, name = function.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), name) if name else None
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        found = None
    except AttributeError:
        found = None
    if not callable(found):
        raise MethodError(
            f"the model must be given by a function, as MODULE:FUNCTION, but there is no '{function}'; "
            "for example models:vgg16, with models.py in this directory"
        )
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise MethodError(
            f"the function that gives the model is called without arguments, but {function} needs some: {error}; "
            "give one that calls it"
        ) from error
    except ValueError:  # some functions in C do not say what they take
        pass
    return found()


def main(arguments: Sequence[str]) -> None:
    """One argument: the job as JSON."""
    data = json.loads(arguments[0])
    run_job(ProfileJob(**{**data, "inputs": tuple(data["inputs"])}))


if __name__ == "__main__":
    main(sys.argv[1:])
