"""Operators as a trace names them, made real again: tensors of the recorded shapes, and a call of the same operator."""

import json
import math
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[], Any]

ROTATION_BYTES = 16 << 20
"""Inputs are dealt from as many copies as fill this, so that they are not always found in the cache."""

ATTENTION = {
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_cudnn_attention",
}
MOVES = {"copy::host_to_device", "copy::device_to_host", "copy::device_to_device"}


class Unrunnable(Exception):
    """An operator that cannot be called here from what its signature says."""


def make_calls(text: str, device: torch.device) -> list[Call]:
    """Calls of the operator with signature `text`, each with inputs of its own, to be gone round."""
    data = json.loads(text)
    specs = [row for row in data["in"] if row is not None]
    size = sum(math.prod(row[1]) * 4 for row in specs)
    count = max(1, min(8, ROTATION_BYTES // max(size, 1)))
    return [make_call(data, specs, device) for _ in range(count)]


def make_call(data: dict[str, Any], specs: list[Any], device: torch.device) -> Call:
    """One call, with inputs made for it."""
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
    """A tensor of one recorded geometry; floats near one, and integers that are valid indices everywhere."""
    dtype_name, shape, strides, place = row
    dtype = getattr(torch, dtype_name)
    where = torch.device("cpu") if place == "cpu" else device
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
    if dtype.is_floating_point:
        flat = torch.rand(extent, device=where).add_(0.5).to(dtype)
    elif dtype == torch.bool:
        flat = torch.rand(extent, device=where) > 0.5
    else:
        flat = torch.randint(0, limit, (extent,), device=where).to(dtype)
    return flat.as_strided(shape, strides)


def index_limit(specs: list[Any]) -> int:
    """A number below which an integer indexes any dimension of any of the tensors."""
    floats = [row for row in specs if row[0].startswith(("float", "bfloat"))]
    return max(1, min((n for row in floats for n in row[1] if n > 1), default=2))


def attention_call(name: str, tensors: list[torch.Tensor], args: list[Any]) -> Call:
    """Attention as this device would do it, whichever kernel the recorded device had."""
    backward = name.endswith("_backward")
    q, k, v = (each.detach().requires_grad_(backward) for each in (tensors[1:4] if backward else tensors[:3]))
    causal = any(each is True for each in args)

    def forward() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    if not backward:
        return forward
    out = forward()
    return lambda: torch.autograd.grad(out, (q, k, v), tensors[0], retain_graph=True)


def copy_call(data: dict[str, Any], tensors: list[torch.Tensor], device: torch.device) -> Call:
    """A copy into a tensor that is there; its source is the last input."""
    target = make_tensor(data["out"][0], device, 2)
    return lambda: target.copy_(tensors[-1])


def fit(packet: Any, words: list[Any], tensors: list[torch.Tensor]) -> tuple[Any, list[Any], dict[str, Any]]:
    """The overload that takes these arguments, with the arguments it takes."""
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
    """Arguments in the schema's order: tensors and lists of them are dealt out, scalars that were not kept are 1."""
    if len(words) > len(schema):
        raise Unrunnable("more arguments than the overload takes")
    deal = Deal(tensors, [str(argument.type) for argument, word in zip(schema, words, strict=False) if word == "t"])
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument, word in zip(schema, words, strict=False):
        value = deal.next(str(argument.type)) if word == "t" else 1 if word == "s" else word
        if not argument.kwarg_only:
            args.append(value)
        elif value is not None:
            kwargs[argument.name] = value
    return args, kwargs


class Deal:
    """Tensors, dealt to arguments of these kinds: lists share what single ones leave, optional ones may go without."""

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
        """The value of the next argument."""
        if "List" in kind:
            return [next(self.left) for _ in range(self.length)]
        if "Optional" in kind and self.absent:
            self.absent -= 1
            return None
        return next(self.left)
