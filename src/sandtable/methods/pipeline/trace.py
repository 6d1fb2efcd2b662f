"""Trace: turn a model into a chain of layers.

A layer is one call of a leaf module, as a person would count layers, and the functions after it (add, cat, view, relu)
up to the next:

    conv1 │ bn1 + relu │ conv2 │ bn2 + add + relu │ ...

A function belongs to the last of the layers it reads from; one that reads from none, to the first layer that reads it.
Numbers (sizes, devices) belong to no layer: they are computed again wherever they are needed, from the tensor they were
read from or one of its shape. So they follow a smaller last minibatch, and only tensors cross between layers.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from sandtable.errors import MethodError
from sandtable.methods.pipeline.modes import BY_MODE, ByMode, in_other_mode, join_modes
from sandtable.methods.pipeline.tracer import KIND, OVERWRITES, SHAPES, Refused, Tracer, tensors_in

__all__ = ["TracedModel", "trace", "unchanged"]

_SHAPE_METHODS = ("size", "dim", "ndimension", "numel", "nelement", "is_floating_point")
_SHAPE_ATTRIBUTES = ("shape", "device")
_TOLERANCE = 1e-2
"""Relative to the largest component: in evaluation, torch.nn has faster kernels that round differently."""
_REMEDY = "move the part that cannot be traced into its own module, give an nn.Sequential, or cut stages by hand"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedModel:
    """What `model(*inputs)` does, node by node, and which layer each node belongs to."""

    model: nn.Module
    graph: fx.Graph
    names: tuple[str, ...]
    """The layers' names: those of their modules, with #2 appended where a module is called a second time."""
    layer_of: Mapping[fx.Node, int]
    """The layer of every node that makes a tensor; the model's inputs and attributes belong to no layer."""
    attributes: Mapping[str, Any]
    """What only the graph has names for: tensors that forward makes from nothing."""
    whole: Mapping[str, str] = field(default_factory=dict)
    """Modules that could not be traced inside, so that each is one layer, with the reason."""
    has_both_modes: bool = True
    """False if training and evaluation differ in more than constants, so that only the traced one is known."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        return tuple(node for node in self.graph.nodes if node.op == "placeholder")

    @property
    def output(self) -> fx.Node:
        return self.graph.output_node()

    def readers(self, *, of_shapes: bool = False) -> dict[fx.Node, set[int]]:
        """Return the layers that read each tensor, or its shape, keyed by the node that makes it.

        The model's output counts as one more layer.
        """
        readers: dict[fx.Node, set[int]] = {}
        for node in self.graph.nodes:
            layer = len(self) if node.op == "output" else self.layer_of.get(node)
            if layer is not None:
                for source, is_shape in tensors_read(node):
                    if is_shape == of_shapes:
                        readers.setdefault(source, set()).add(layer)
        return readers

    def edges(self) -> tuple[tuple[int, int], ...]:
        """Return the pairs of a layer and one that reads a tensor it makes."""
        pairs = {
            (self.layer_of[source], reader)
            for source, readers in self.readers().items()
            for reader in readers
            if source in self.layer_of and self.layer_of[source] < reader < len(self)
        }
        return tuple(sorted(pairs))

    def attribute(self, name: str) -> Any:
        """Return the module, parameter, buffer or constant that the graph calls `name`."""
        if name in self.attributes:
            return self.attributes[name]
        value: Any = self.model
        for part in name.split("."):
            value = getattr(value, part)
        return value


def trace(model: nn.Module, example_inputs: Tensor | Sequence[Tensor]) -> TracedModel:
    """Trace what the model does with these inputs, given by position; the model is left unchanged."""
    inputs = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    if not inputs or not all(isinstance(value, Tensor) for value in inputs):
        kinds = ", ".join(type(value).__name__ for value in inputs) or "none"
        raise MethodError(f"example inputs must be one or more tensors, but got {kinds}; give a training minibatch")
    with unchanged(model), torch.no_grad():
        # An error of the model itself is raised here, as it would be in training.
        result = model(*(value.clone() for value in inputs))
    whole: dict[str, str] = {}
    tracer, constants = _traced(model, inputs, whole)
    _check_result(model, result, tracer)
    graph = tracer.graph
    names, layer_of = _layers(graph)
    if not names:
        raise MethodError(
            f"a model must call modules to have layers, but {type(model).__name__} calls none; give an nn.Sequential"
        )
    has_both_modes = _join_other_mode(model, inputs, dict(whole), graph, constants)
    _take_apart(tracer, layer_of, last=len(names) - 1)
    return TracedModel(
        model=model,
        graph=graph,
        names=names,
        layer_of=layer_of,
        attributes={**constants, BY_MODE: ByMode().train(model.training)},
        whole=whole,
        has_both_modes=has_both_modes,
    )


def _traced(model: nn.Module, inputs: Sequence[Tensor], whole: dict[str, str]) -> tuple[Tracer, dict[str, Tensor]]:
    """Return a tracer that has finished; put each module it cannot trace into `whole`, and start again."""
    while True:
        with unchanged(model) as constants:
            try:
                tracer = Tracer([value.clone() for value in inputs], frozenset(whole))
                tracer.trace(model)
                return tracer, constants
            except Refused as stopped:
                whole[stopped.path] = str(stopped)
            except Exception as error:
                raise MethodError(
                    f"to be traced, a model must do the same for every minibatch, but {type(model).__name__} does not: "
                    f"{Refused('', error)}; {_REMEDY}"
                ) from error


def _join_other_mode(
    model: nn.Module, inputs: Sequence[Tensor], whole: dict[str, str], graph: fx.Graph, constants: Mapping[str, Tensor]
) -> bool:
    try:
        with in_other_mode(model):
            other, others = _traced(model, inputs, whole)
    except MethodError:
        return False
    if constants.keys() != others.keys() or not all(_is_close(constants[name], others[name]) for name in constants):
        return False
    return join_modes(graph, other.graph, is_training=model.training)


def _check_result(model: nn.Module, result: Any, tracer: Tracer) -> None:
    """Check that the trace gives the same result for the same inputs and random numbers."""
    traced = map_aggregate(tracer.graph.output_node().args[0], tracer.value)
    pairs = list(zip_longest(tensors_in(result), tensors_in(traced)))
    if all(one is not None and other is not None and _is_close(one, other) for one, other in pairs):
        return
    raise MethodError(
        f"a traced model must return what the model returns, but {type(model).__name__} returns something else when "
        f"traced: it does what a trace does not see; {_REMEDY}"
    )


def _is_close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_meta or not one.numel():
        return True
    if not one.is_floating_point():
        return torch.equal(one, other)
    scale = float(one.nan_to_num().abs().max())
    return torch.allclose(one, other, rtol=0.0, atol=_TOLERANCE * scale, equal_nan=True)


def tensors_read(node: fx.Node) -> Iterator[tuple[fx.Node, bool]]:
    """Yield the nodes whose tensors `node` reads, directly or through a number, and whether only the shape matters.

    Attributes of the model are not among them.
    """
    for source in node.all_input_nodes:
        if source.op == "get_attr":
            continue
        if _is_number(source):
            yield from tensors_read(source)
        else:
            yield source, _is_number(node) and _asks_for_shape(node)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Restore buffers and random state afterwards; yield a dict that then holds tensors put on the model meanwhile."""
    before = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    attributes = set(vars(model))
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers()) if tensor.is_cuda}
    constants: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=sorted(devices, key=str)), torch.enable_grad():
        try:
            yield constants
        finally:
            for name in set(vars(model)) - attributes:
                if name.startswith("_tensor_constant"):
                    constants[name] = vars(model).pop(name)
            with torch.no_grad():
                for module, name, buffer, value in before:
                    module._buffers[name] = buffer.copy_(value)


def _layers(graph: fx.Graph) -> tuple[tuple[str, ...], dict[fx.Node, int]]:
    """Return the names of the layers, and the layer of every node that makes a tensor."""
    names: list[str] = []
    calls: Counter[Any] = Counter()
    layer_of: dict[fx.Node, int] = {}
    written: dict[fx.Node, int] = {}
    free: list[fx.Node] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or (node.op != "call_module" and _is_number(node)):
            continue
        if node.op == "call_module":
            calls[node.target] += 1
            names.append(f"{node.target}#{calls[node.target]}" if calls[node.target] > 1 else str(node.target))
            layer_of[node] = len(names) - 1
        else:
            known = [max(layer_of.get(source, -1), written.get(source, -1)) for source, _ in tensors_read(node)]
            known += [layer_of.get(reader, -1) for target in node.meta.get(OVERWRITES, ()) for reader in target.users]
            if max(known, default=-1) < 0:
                free.append(node)
                continue
            layer_of[node] = max(known)
        written.update(dict.fromkeys(node.meta.get(OVERWRITES, ()), layer_of[node]))
    for node in graph.output_node().all_input_nodes:
        if isinstance(node.target, type):  # the class of the result, assembled at the very end
            layer_of[node] = len(names) - 1
    for node in reversed(free):
        layer_of[node] = min((layer_of[reader] for reader in _users(node) if reader in layer_of), default=0)
    return tuple(names), layer_of


def _is_number(node: fx.Node) -> bool:
    return bool(node.meta.get(KIND) == "number")


def _asks_for_shape(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _SHAPE_METHODS
    return node.target is getattr and node.args[1] in _SHAPE_ATTRIBUTES


def _users(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the nodes that read the tensor, directly or through a number."""
    for user in node.users:
        if user.op not in ("output", "call_module") and _is_number(user):
            yield from _users(user)
        else:
            yield user


def _take_apart(tracer: Tracer, layer_of: dict[fx.Node, int], *, last: int) -> None:
    """Let layers read another layer's tuple of tensors one by one, so that only tensors cross."""
    for node in list(tracer.graph.nodes):
        if node.meta.get(KIND) != "tensors" or node not in layer_of:
            continue
        elsewhere = [user for user in node.users if layer_of.get(user, last) != layer_of[node]]
        if elsewhere:
            with tracer.graph.inserting_before(node.next):
                parts = _parts(tracer, node, layer_of)
            for user in elsewhere:
                user.args = _replaced(user.args, node, parts)
                user.kwargs = _replaced(user.kwargs, node, parts)


def _parts(tracer: Tracer, node: fx.Node, layer_of: dict[fx.Node, int]) -> Any:
    """Return the tuple rebuilt from nodes that each take one tensor out of `node`."""
    value = node.meta[SHAPES]
    if not isinstance(value, dict | tuple | list):
        return node if isinstance(value, Tensor) else value
    taken = {}
    for key in value if isinstance(value, dict) else range(len(value)):
        part = tracer.graph.call_function(operator.getitem, (node, key))
        tracer.keep(part, value[key])
        layer_of[part] = layer_of[node]
        taken[key] = _parts(tracer, part, layer_of)
    return taken if isinstance(value, dict) else tuple(taken.values())


def _replaced(arguments: Any, node: fx.Node, parts: Any) -> Any:
    return map_aggregate(arguments, lambda argument: parts if argument is node else argument)
