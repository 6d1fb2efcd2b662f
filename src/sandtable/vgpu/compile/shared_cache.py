"""Shared cache: what one rank has compiled serves the ranks of other cards.

The caches of AOTAutograd and Inductor look a graph up by a key that names the card, and keep code that names it, too:

    with torch.cuda._DeviceGuard(3): ... device(type='cuda', index=3)

So on a node of eight cards every rank would compile for itself. Here a key says that a tensor is on the rank's own card
and not which one that is, and code that was compiled for another card is rewritten when it is loaded. Cards that are
not a rank's own keep their numbers, in keys and in code.

Code with collectives names their groups. Ranks of other groups compile for themselves: a key that tells the mesh of a
distributed tensor would not tell which of the mesh's groups a rank is in.
"""

from __future__ import annotations

import functools
import re
from typing import Any

__all__ = ["name_groups", "rewrite_cards", "share_code", "share_keys"]

_OWN_CARD = "own card"
_CARD_IN_CODE = r"(_DeviceGuard\(|set_device\(|get_raw_stream\(|type='cuda', index=|cuda:){}(?!\d)"
"""Where the code of a graph names a card: guards and streams around it, tensors that it makes, its kernels."""


def share_keys(module: Any) -> None:
    """Have keys of `torch._inductor.codecache` not name the rank's own card."""
    pickler, details = module.FxGraphCachePickler, module.FxGraphHashDetails
    original_pickler, original_details, dumps = pickler.__init__, details.__init__, pickler.dumps

    @functools.wraps(original_pickler)
    def make_pickler(self: Any, *args: Any, **options: Any) -> None:
        import torch

        original_pickler(self, *args, **options)
        self.dispatch_table[torch.device] = _reduce_device

    @functools.wraps(original_details)
    def make_details(self: Any, *args: Any, **options: Any) -> None:
        original_details(self, *args, **options)
        if hasattr(self, "default_cuda_device_index"):
            self.default_cuda_device_index = _OWN_CARD

    @functools.wraps(dumps)
    def dump_key(self: Any, obj: Any) -> bytes:
        """Return bytes of which only a hash is kept; a graph in them is text."""
        key: bytes = dumps(self, obj)
        return re.sub(_CARD_IN_CODE.format(_own_card()).encode(), rb"\1" + _OWN_CARD.encode(), key)

    pickler.__init__, details.__init__, pickler.dumps = make_pickler, make_details, dump_key


def share_code(module: Any) -> None:
    """Have compiled graphs of `torch._inductor.output_code` remember their card, and be loaded for another one."""
    graph = module.CompiledFxGraph
    prepare, load = graph.prepare_for_serialization, graph.after_deserialization

    @functools.wraps(prepare)
    def prepare_for_serialization(self: Any) -> None:
        self.compiled_for_card = _own_card()
        prepare(self)

    @functools.wraps(load)
    def after_deserialization(self: Any, *args: Any) -> Any:
        _rewrite_graph(self, self.compiled_for_card, _own_card())
        return load(self, *args)

    graph.prepare_for_serialization, graph.after_deserialization = prepare_for_serialization, after_deserialization


def name_groups(module: Any) -> None:
    """Have what `torch.distributed.device_mesh` adds to keys name the rank's own groups of a mesh."""
    mesh = module.DeviceMesh
    original = getattr(mesh, "_stable_hash", None)
    if original is None:  # then distributed tensors are in no key, and graphs with them in no cache
        return

    @functools.wraps(original)
    def _stable_hash(self: Any) -> str:
        return f"{original(self)} {getattr(self, '_dim_group_names', ())}"

    mesh._stable_hash = _stable_hash


def rewrite_cards(code: str, old: int, new: int) -> str:
    """Return the code of a graph that was compiled for the card `old` as that for the card `new`."""
    return re.sub(_CARD_IN_CODE.format(old), rf"\g<1>{new}", code)


def _rewrite_graph(graph: Any, old: int, new: int) -> None:
    if old == new:
        return
    from torch._inductor.codecache import code_hash

    graph.source_code = rewrite_cards(graph.source_code, old, new)
    graph.cache_key = code_hash(graph.source_code)  # names the file that the code is loaded from
    graph.device_idxs = type(graph.device_idxs)(new if index == old else index for index in graph.device_idxs)
    graph.compiled_for_card = new


def _reduce_device(device: Any) -> tuple[Any, tuple[Any, ...]]:
    is_own = device.type == "cuda" and device.index == _own_card()
    return str, (_OWN_CARD if is_own else str(device),)


def _own_card() -> int:
    import torch

    return torch.cuda.current_device()
