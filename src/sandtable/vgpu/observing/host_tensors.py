"""Host tensors: large ones that the script's variables hold in host memory, with a sample of what is in them."""

from __future__ import annotations

import ast
import sys
import zlib
from typing import Any

from sandtable.trace import HostTensor
from sandtable.vgpu.observing.retention import names_in_script, place_of

__all__ = ["host_tensors"]

_LEAST_BYTES = 64 << 20
_SAMPLE = 256


def host_tensors() -> tuple[HostTensor, ...]:
    """Return the large tensors and arrays in host memory that no other process shares."""
    found = {}
    for thing, name in names_in_script().values():
        array = _own_array(thing)
        if array is not None and array.nbytes >= _LEAST_BYTES:
            found[name] = HostTensor(
                name=name, num_bytes=int(array.nbytes), digest=_digest(array), place=place_of(name, _assigns)
            )
    return tuple(found.values())


def _own_array(thing: Any) -> Any:
    """Return the numbers as an array of NumPy's, if this process keeps them in memory of its own."""
    numpy, torch = sys.modules["numpy"], sys.modules["torch"]
    if type(thing) is numpy.ndarray:
        return thing if thing.base is None or type(thing.base) is numpy.ndarray else None
    if type(thing) is not torch.Tensor or thing.device.type != "cpu" or thing.is_sparse or thing.is_shared():
        return None
    is_own = thing.is_contiguous() and not thing.requires_grad and thing.untyped_storage().filename is None
    return thing.view(-1).view(torch.uint8).numpy() if is_own and thing.numel() else None


def _digest(array: Any) -> int:
    step = max(array.size // _SAMPLE, 1)
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    return zlib.crc32(repr((array.shape, [str(number) for number in flat[: step * _SAMPLE : step]])).encode())


def _assigns(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Assign(targets=[ast.Name(id=target)]) | ast.Assign(targets=[ast.Attribute(attr=target)]):
            return target == name
        case ast.AnnAssign(target=ast.Name(id=target)) | ast.AnnAssign(target=ast.Attribute(attr=target)):
            return target == name
    return False
