"""A witness of what ranks really send each other: calls of torch's process groups, and messages over sockets.

It stands between Python and torch's own groups, in whatever thread a call is made, and shares no code with the product.
"""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup

__all__ = ["Calls", "Message", "Witness"]

Calls = Counter[tuple[str, int, int]]
"""How often (operator, bytes in, bytes out)."""

Message = tuple[str, int, int]
"""Direction, bytes of header and of payload."""

_IS_NEW = hasattr(ProcessGroup, "all_gather_single")
"""False for torch 2.12, whose names are older."""

_GATHER = "all_gather_single" if _IS_NEW else "_allgather_base"
_SCATTER = "reduce_scatter_single" if _IS_NEW else "_reduce_scatter_base"

_METHODS: dict[str, tuple[str, Callable[..., tuple[Any, Any]]]] = {
    "send": ("send", lambda tensors, *_: (tensors, ())),
    "recv": ("recv", lambda tensors, *_: ((), tensors)),
    "allreduce": ("all_reduce", lambda tensors, *_: (tensors, tensors)),
    "broadcast": ("broadcast", lambda tensors, *_: (tensors, tensors)),
    "allgather": ("all_gather", lambda outputs, inputs, *_: (inputs, outputs)),
    _GATHER: ("all_gather", lambda output, given, *_: (given, output)),
    _SCATTER: ("reduce_scatter", lambda output, given, *_: (given, output)),
    "barrier": ("barrier", lambda *_: ((), ())),
}


class Witness:
    """From `watch` on it counts the calls and messages of this process."""

    def __init__(self) -> None:
        self.calls: Calls = Counter()
        self.messages: list[Message] = []

    def watch(self) -> "Witness":
        for name, (op, sides) in _METHODS.items():
            self._stand_at(name, op, sides)
        sys.addaudithook(self._hear)
        return self

    def _stand_at(self, name: str, op: str, sides: Callable[..., tuple[Any, Any]]) -> None:
        original = getattr(ProcessGroup, name)

        def noted(group: ProcessGroup, *args: Any, **options: Any) -> Any:
            given, got = sides(*args)
            self.calls[op, _num_bytes(given), _num_bytes(got)] += 1
            return original(group, *args, **options)

        setattr(ProcessGroup, name, noted)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "sandtable.message":
            _, direction, header_bytes, payload_bytes = arguments
            self.messages.append((direction, header_bytes, payload_bytes))


def _num_bytes(tensors: Any) -> int:
    return tensors.nbytes if isinstance(tensors, torch.Tensor) else sum(map(_num_bytes, tensors))
