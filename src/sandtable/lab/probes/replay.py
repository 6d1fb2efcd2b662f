"""Call a trace's operators again, on tensors of the recorded shapes."""

import json
import math
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[], Any]

ROTATION_BYTES = 16 << 20
"""Calls rotate through enough copies of the inputs to fill this, so that the cache does not always hold them."""

ATTENTION = {
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_cudnn_attention",
}
MOVES = {"copy::host_to_device", "copy::device_to_host", "copy::device_to_device"}


class Unrunnable(Exception):
    """An operator that cannot be called here from its signature alone."""


def make_calls(text: str, device: torch.device) -> list[Call]:
    """Return calls of the operator with signature `text`, each with its own inputs, to cycle through."""
    data = json.loads(text)
    specs = [row for row in data["in"] if row is not None]
    size = sum(math.prod(row[1]) * 4 for row in specs)
    count = max(1, min(8, ROTATION_BYTES // max(size, 1)))
    return [make_call(data, specs, device) for _ in range(count)]


def make_call(data: dict[str, Any], specs: list[Any], device: torch.device) -> Call:
    """Return one call with its own inputs."""
    name = data["op"].partition(".")[0]
    limit = index_limit(specs)
    tensors = [make_tensor(row, device, limit) for row in specs]
    if name in ATTENTION or name.removesuffix("_backward") in ATTENTION:
        return attention_call(name, tensors, data["args"])
    if name == "aten::copy_":
        return copy_call(data, tensors, device)
    if name == "aten::_to_copy":
        dtype = getattr(torch, data["out"][0][0])
        return lambda: tensors[0].to(dtype, copy=True)
    namespace, _, short = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), short, None)
    if packet is None:
        raise Unrunnable(name)
    overload, args, kwargs = fit(packet, data["args"], tensors)
    return lambda: overload(*args, **kwargs)


def make_tensor(row: Any, device: torch.device, limit: int) -> torch.Tensor:
    """Create a tensor of a recorded geometry: floats near one, or integers that are valid indices everywhere."""
    dtype_name, shape, strides, device_name = row
    dtype = getattr(torch, dtype_name)
    target = torch.device("cpu") if device_name == "cpu" else device
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
    if dtype.is_floating_point:
        flat = torch.rand(extent, device=target).add_(0.5).to(dtype)
    elif dtype == torch.bool:
        flat = torch.rand(extent, device=target) > 0.5
    else:
        flat = torch.randint(0, limit, (extent,), device=target).to(dtype)
    return flat.as_strided(shape, strides)


def index_limit(specs: list[Any]) -> int:
    """Return a bound below which an integer is a valid index into every dimension of every tensor."""
    floats = [row for row in specs if row[0].startswith(("float", "bfloat"))]
    return max(1, min((n for row in floats for n in row[1] if n > 1), default=2))


def attention_call(name: str, tensors: list[torch.Tensor], args: list[Any]) -> Call:
    """Return a call of attention as this device runs it, whichever kernel the recorded device used."""
    backward = name.endswith("_backward")
    q, k, v = (tensor.detach().requires_grad_(backward) for tensor in (tensors[1:4] if backward else tensors[:3]))
    causal = any(argument is True for argument in args)

    def forward() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    if not backward:
        return forward
    out = forward()
    return lambda: torch.autograd.grad(out, (q, k, v), tensors[0], retain_graph=True)


def copy_call(data: dict[str, Any], tensors: list[torch.Tensor], device: torch.device) -> Call:
    """Return a copy of the last input into an existing tensor."""
    target = make_tensor(data["out"][0], device, 2)
    return lambda: target.copy_(tensors[-1])


def fit(packet: Any, words: list[Any], tensors: list[torch.Tensor]) -> tuple[Any, list[Any], dict[str, Any]]:
    """Return the overload that takes these arguments, with the arguments bound to it."""
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        try:
            args, kwargs = bind(overload._schema.arguments, words, list(tensors))
            overload(*args, **kwargs)
        except (Unrunnable, RuntimeError, TypeError, IndexError):
            continue
        return overload, args, kwargs
    raise Unrunnable(str(packet))


def bind(schema: Any, words: list[Any], tensors: list[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
    """Bind arguments in the schema's order: assign tensors and lists of them, and use 1 for unrecorded scalars."""
    if len(words) > len(schema):
        raise Unrunnable("more arguments than the overload takes")
    assigned = TensorArguments(
        tensors, [str(argument.type) for argument, word in zip(schema, words, strict=False) if word == "t"]
    )
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument, word in zip(schema, words, strict=False):
        value = assigned.next(str(argument.type)) if word == "t" else 1 if word == "s" else word
        if not argument.kwarg_only:
            args.append(value)
        elif value is not None:
            kwargs[argument.name] = value
    return args, kwargs


class TensorArguments:
    """Assigns tensors to arguments of these kinds: lists divide what single ones leave, optional ones may get none."""

    def __init__(self, tensors: list[torch.Tensor], kinds: list[str]) -> None:
        if not all("Tensor" in kind for kind in kinds):
            raise Unrunnable("a tensor where none is taken")
        num_lists = sum("List" in kind for kind in kinds)
        singles = len(kinds) - num_lists
        self.absent = max(0, singles - len(tensors))
        if self.absent > sum("Optional" in kind for kind in kinds):
            raise Unrunnable("fewer tensors than the overload takes")
        rest = len(tensors) - singles + self.absent
        if rest % num_lists if num_lists else rest:
            raise Unrunnable("more tensors than the overload takes, or lists of unequal length")
        self.length = rest // num_lists if num_lists else 0
        self.left = iter(tensors)

    def next(self, kind: str) -> Any:
        """Return the value of the next argument."""
        if "List" in kind:
            return [next(self.left) for _ in range(self.length)]
        if "Optional" in kind and self.absent:
            self.absent -= 1
            return None
        return next(self.left)
