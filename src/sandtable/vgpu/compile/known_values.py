"""Known values through a compiled graph.

Small values are real on the virtual GPU, and scripts branch on them; but a fused kernel is only a record of itself, so
what it writes is unknown. A graph all of whose inputs are small and known is therefore also run operator by operator,
unrecorded, and its results take those values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import GraphModule

__all__ = ["small_graph", "with_known_values"]

_SMALL_BYTES = 64 * 1024
"""Larger values are never known, but for bytes of pickled objects."""


def small_graph(graph: GraphModule, example_inputs: Sequence[Any]) -> GraphModule | None:
    """Return a copy of a graph that the compiler will change, or None if its inputs are too large to be known."""
    import torch

    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    if any(_num_bytes(tensor) > _SMALL_BYTES for tensor in tensors):
        return None
    return copy.deepcopy(graph)


def with_known_values(graph: GraphModule, run: Callable[..., Any], core: ModuleType) -> Callable[..., Any]:
    """Return the compiled graph `run` as a function whose results have values where all inputs do."""
    import torch

    written = _written_inputs(graph)

    def run_with_values(inputs: list[Any]) -> Any:
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        if not all(core.has_exact_value(tensor) for tensor in tensors):
            return run(inputs)
        originals = [inputs[place] for place in written]  # the compiled graph clears the list
        with _unrecorded(core):
            copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
            values = graph(*copies)
        results = run(inputs)
        with _unrecorded(core), torch.no_grad():
            _assign([*results, *originals], [*values, *(copies[place] for place in written)])
        return results

    run_with_values._boxed_call = True  # type: ignore[attr-defined]
    return run_with_values


def _written_inputs(graph: GraphModule) -> list[int]:
    """Return the places of the inputs that the graph writes, which it does at its end."""
    import torch

    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    copies = [node for node in graph.graph.nodes if node.target is torch.ops.aten.copy_.default]
    return [inputs.index(node.args[0]) for node in copies if node.args[0] in inputs]


@contextmanager
def _unrecorded(core: ModuleType) -> Iterator[None]:
    core.set_compiling(True)
    try:
        yield
    finally:
        core.set_compiling(False)


def _assign(targets: Sequence[Any], values: Sequence[Any]) -> None:
    import torch

    for target, value in zip(targets, values, strict=True):
        if isinstance(target, torch.Tensor) and isinstance(value, torch.Tensor) and target.shape == value.shape:
            target.copy_(value)


def _num_bytes(tensor: Any) -> int:
    return int(tensor.numel()) * tensor.element_size() if not any(_is_symbol(size) for size in tensor.shape) else 0


def _is_symbol(size: Any) -> bool:
    return not isinstance(size, int)
