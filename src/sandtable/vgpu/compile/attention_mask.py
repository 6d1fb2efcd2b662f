"""Masks of flex attention: which share of the pairs of query and key a kernel computes.

The kernel skips a block of 128 queries and 128 keys if the mask keeps none of its pairs. A mask that depends on
positions alone (causal, a sliding window) is evaluated when it is compiled. One that also reads tensors (documents,
prefixes) is evaluated at each launch with what they hold, as long as it is known; else it counts as causal. Positions
are sampled: some blocks of queries, three queries of each, and every eighth key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sandtable.vgpu.preload import loaded_core

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule

__all__ = ["causal_density", "density_of_values", "function_of", "mask_code", "mask_density"]

_BLOCK = 128
_MAX_QUERY_BLOCKS = 256
_MAX_BATCH = 4
_KEY_STRIDE = 8

_densities: dict[tuple[Any, ...], float] = {}
"""By a mask's code, its sizes and what its tensors hold: layers share a mask, and some scripts change it every step."""
_MAX_DENSITIES = 64


def causal_density(num_queries: int) -> float:
    """Return the share of blocks that a causal mask keeps."""
    return (1 + 1 / max(num_queries // _BLOCK, 1)) / 2


def mask_code(graph: GraphModule) -> str:
    """Return the Python code of a mask, which stays valid in another process; empty if it needs more than arguments."""
    if any(node.op in ("get_attr", "call_module") for node in graph.graph.nodes):
        return ""
    return graph.graph.python_code("self").src


def mask_density(
    mask: Callable[..., Any], num_queries: int, num_keys: int, *, batch: int = 1, others: Sequence[Tensor] = ()
) -> float:
    """Return the share of blocks of queries and keys of which a mask keeps a pair."""
    import torch

    num_blocks = math.ceil(num_queries / _BLOCK)
    blocks = torch.linspace(0, num_blocks - 1, min(num_blocks, _MAX_QUERY_BLOCKS)).long()
    starts = blocks * _BLOCK
    ends = torch.clamp(starts + _BLOCK, max=num_queries) - 1
    queries = torch.stack((starts, (starts + ends) // 2, ends), dim=1).reshape(-1, 1)
    keys = torch.arange(0, math.ceil(num_keys / _BLOCK) * _BLOCK, _KEY_STRIDE).clamp_(max=num_keys - 1).reshape(1, -1)
    zero, shares = torch.zeros((), dtype=torch.int64), []
    for row in range(min(batch, _MAX_BATCH)):
        kept = mask(torch.tensor(row), zero, queries, keys, *others)
        kept = kept.expand(queries.shape[0], keys.shape[1]).reshape(len(blocks), 3, -1, _BLOCK // _KEY_STRIDE)
        shares.append(float(kept.any(dim=3).any(dim=1).float().mean()))
    return sum(shares) / len(shares)


def density_of_values(code: str, query: Tensor, key: Tensor, others: Sequence[Tensor]) -> float | None:
    """Return the density of a mask with what its tensors hold; None if that is not known."""
    core = loaded_core()
    if not code or not all(core.has_exact_value(tensor) for tensor in others):
        return None
    with _unrecorded():
        values = [tensor.cpu() for tensor in others]
        sizes = query.shape[-2], key.shape[-2]
        place = (code, *sizes, *(value.numpy().tobytes() for value in values))
        if place not in _densities:
            if len(_densities) >= _MAX_DENSITIES:
                _densities.clear()
            try:
                _densities[place] = mask_density(function_of(code), *sizes, batch=query.shape[0], others=values)
            except Exception:  # whatever a mask may do that only a card can
                return None
    return _densities[place]


def function_of(code: str) -> Callable[..., Any]:
    """Return the mask of this code, to be called with tensors on the host."""
    import torch

    def on_host(*_: Any, **__: Any) -> torch.device:
        return torch.device("cpu")

    names: dict[str, Any] = {"torch": torch, "device": on_host, "inf": math.inf, "nan": math.nan}
    exec(code, names)  # the code is what torch printed of a graph
    forward = names["forward"]
    return lambda *arguments: forward(None, *arguments)


@contextmanager
def _unrecorded() -> Iterator[None]:
    core = loaded_core()
    core.set_compiling(True)
    try:
        yield
    finally:
        core.set_compiling(False)
