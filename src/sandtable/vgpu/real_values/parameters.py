"""Parameters: all that this process holds, by name, and which part of the whole each tensor is."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sandtable.trace.real_values import ParameterPiece

__all__ = ["OwnedTensor", "local", "owned_tensors", "root_modules"]

_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnedTensor:
    """A parameter, or with `begin` the elements of a flat parameter from there on, and which piece of which it is."""

    tensor: Any
    piece: ParameterPiece
    begin: int = -1

    @property
    def value(self) -> Any:
        """The numbers this rank holds."""
        return self._part(local(self.tensor).data)  # to write it is no use of it that autograd must know

    @property
    def gradient(self) -> Any:
        """The gradient this rank holds, or None."""
        gradient = self.tensor.grad
        return None if gradient is None else self._part(local(gradient).data)

    def _part(self, tensor: Any) -> Any:
        if self.begin < 0:
            return tensor
        (length,) = self.piece.local_shape
        return tensor.reshape(-1)[self.begin : self.begin + length]


def owned_tensors(optimizers: Iterable[Any]) -> list[OwnedTensor]:
    """Return the parameters of all modules, and those of optimizers that no module has."""
    held = {
        id(tensor): f"optimizer{number}.group{place}.{position}"
        for number, optimizer in enumerate(optimizers)
        for place, group in enumerate(optimizer.param_groups)
        for position, tensor in enumerate(group["params"])
    }
    owned: list[OwnedTensor] = []
    seen: set[int] = set()
    roots = [(module, list(_of_module(module, "", held))) for module in root_modules()]
    counts = Counter(one.piece.name for _, tensors in roots for one in tensors)
    has_collision = any(count > 1 for count in counts.values())
    kinds: Counter[str] = Counter()
    for module, tensors in roots:
        kind = _inner_name(module)
        kinds[kind] += 1
        prefix = f"{kind}#{kinds[kind]}." if has_collision else ""
        for one in tensors:
            if id(one.tensor) not in seen or one.begin >= 0:
                owned.append(replace(one, piece=replace(one.piece, name=prefix + one.piece.name)))
                seen.add(id(one.tensor))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for tensor in group["params"]:
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    owned.append(OwnedTensor(tensor=tensor, piece=_piece(held[id(tensor)], tensor, is_held=True)))
    return owned


def local(tensor: Any) -> Any:
    """Return the tensor that this rank holds of a distributed one."""
    return getattr(tensor, "_local_tensor", tensor)


def root_modules() -> list[Any]:
    """Return the outermost modules with parameters."""
    from torch.nn import Module

    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), Module)]
    modules = [module for module in modules if "_parameters" in module.__dict__]
    children = {id(child) for module in modules for child in module._modules.values()}
    return [module for module in modules if id(module) not in children and any(True for _ in module.parameters())]


def _inner_name(module: Any) -> str:
    """Return the class of the module inside all wrappers, whose name is the same with and without them."""
    while len(module._modules) == 1 and module._modules.keys() <= _WRAPPERS:
        (module,) = module._modules.values()
    return type(module).__name__.removeprefix("FSDP")


def _of_module(module: Any, prefix: str, held: dict[int, str]) -> Iterator[OwnedTensor]:
    flat = {id(handle.flat_param): path for path, handle in _flat_handles(module)}
    covered: set[int] = set()
    for path, handle in _flat_handles(module):
        for one in _of_flat(handle, prefix + path, held):
            covered.add(id(one.tensor))
            yield one
    for path, holder in module.named_modules():
        for name, tensor in holder._parameters.items():
            if tensor is None or id(tensor) in flat or id(tensor) in covered:
                continue
            full = _short(f"{path}.{name}" if path else name)
            yield OwnedTensor(tensor=tensor, piece=_piece(prefix + full, tensor, is_held=id(tensor) in held))


def _flat_handles(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the flat parameters of FSDP1, with the path of the module that each belongs to."""
    for path, holder in module.named_modules():
        handle = holder.__dict__.get("_handle")
        if handle is not None and hasattr(handle, "flat_param"):
            yield _short(f"{path}.") if path else "", handle


def _of_flat(handle: Any, prefix: str, held: dict[int, str]) -> Iterator[OwnedTensor]:
    flat = handle.flat_param
    originals = getattr(flat, "_params", None)
    for number, (fqn, shape, info) in enumerate(zip(flat._fqns, flat._shapes, flat._shard_param_infos, strict=True)):
        length, start = info.numel_in_shard or 0, info.intra_param_start_idx or 0
        tensor = originals[number] if originals else flat
        begin = 0 if originals else info.offset_in_shard or 0
        piece = ParameterPiece(
            name=_short(prefix + fqn),
            local_shape=(length,),
            dtype=_dtype(flat),
            shape=tuple(map(int, shape)),
            start=start,
            is_held=id(tensor) in held,
        )
        yield OwnedTensor(tensor=tensor, piece=piece, begin=begin)


def _piece(name: str, tensor: Any, *, is_held: bool) -> ParameterPiece:
    inside = local(tensor)
    shape: tuple[int, ...] = ()
    offset: tuple[int, ...] = ()
    has_partial = False
    if inside is not tensor:
        shape, offset = tuple(map(int, tensor.shape)), _offset(tensor)
        gradient = tensor.grad
        has_partial = any(placement.is_partial() for placement in getattr(gradient, "placements", ()))
    return ParameterPiece(
        name=name,
        local_shape=tuple(map(int, inside.shape)),
        dtype=_dtype(tensor),
        shape=shape,
        offset=offset,
        is_held=is_held,
        has_partial_gradient=has_partial,
    )


def _offset(tensor: Any) -> tuple[int, ...]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(map(int, offset))


def _short(name: str) -> str:
    """Return the name without what wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
