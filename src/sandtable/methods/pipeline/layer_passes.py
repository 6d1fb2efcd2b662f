"""Passes: one minibatch through the layers of a model, one by one, and back, each of them timed.

What a layer reads is cut off from the layers before, so that its backward pass begins and ends with it. Gradients are
carried from layer to layer by hand, and nothing is kept that training would not keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sandtable.errors import MethodError
from sandtable.methods.pipeline.clocks import Clock
from sandtable.methods.pipeline.cut import Crossing, Piece
from sandtable.methods.pipeline.trace import TracedModel
from sandtable.methods.pipeline.tracer import OVERWRITES, tensors_in

__all__ = ["Loss", "Runner", "SingleLayer"]

Loss = Callable[[Any], Tensor]
Readers = Mapping[fx.Node, set[int]]
"""The layers that read a tensor, by the node that makes it."""
Span = tuple[Any, Any]
"""Marks of a clock: begin and end."""
T = TypeVar("T")


class Runner:
    """Carries a minibatch through all layers, one by one, and back."""

    def __init__(self, traced: TracedModel, loss: Loss | None, clock: Clock) -> None:
        self._inputs, self._loss, self._clock = traced.inputs, loss, clock
        readers, askers = traced.readers(), traced.readers(of_shapes=True)
        every = [SingleLayer.of(traced, k, readers=readers, askers=askers) for k in range(len(traced) + 1)]
        *self.layers, self._end = every

    def run(self, inputs: Sequence[Tensor], tick: Callable[[], None]) -> list[tuple[float, float]]:
        """Seconds forward and backward of each layer; those of the loss are in the last one's."""
        values = {node: each.clone() for node, each in zip(self._inputs, inputs, strict=True)}
        gradients: dict[fx.Node, Tensor] = {}
        passes = [_Pass(layer) for layer in self.layers]
        end = _Pass(self._end)
        forward, backward = [], []
        for each in passes:
            each.enter(values)
            forward.append(self._timed(partial(each.forward, values))[0])
            tick()
        end.enter(values)
        span, ones = self._timed(partial(end.finish, self._loss))
        forward.append(span)
        backward.append(self._timed(partial(end.backward, ones, gradients))[0])
        while passes:
            each = passes.pop()
            given = [gradients.pop(node, None) for node in each.gives]
            backward.append(self._timed(partial(each.backward, given, gradients))[0])
            tick()
        return self._seconds(forward, backward[::-1])

    def _seconds(self, forward: Sequence[Span], backward: Sequence[Span]) -> list[tuple[float, float]]:
        self._clock.wait()
        spans = zip(forward, backward, strict=True)
        seconds = [(self._clock.seconds(ahead), self._clock.seconds(back)) for ahead, back in spans]
        of_loss = seconds.pop()
        seconds[-1] = (seconds[-1][0] + of_loss[0], seconds[-1][1] + of_loss[1])
        return seconds

    def _timed(self, work: Callable[[], T]) -> tuple[Span, T]:
        """When the work began and ended, and what it gave."""
        begin = self._clock.mark()
        result = work()
        return (begin, self._clock.mark()), result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SingleLayer:
    """One layer as a module of its own, and the nodes of the tensors it reads and gives."""

    module: nn.Module
    takes: tuple[fx.Node, ...]
    gives: tuple[fx.Node, ...]
    hands_on: tuple[fx.Node, ...]
    """Of those it gives, the ones that are read; of the others somebody asks for the shape."""
    reads_last: tuple[fx.Node, ...]
    """Of those it takes, the ones that nobody takes after it."""
    overwrites: frozenset[fx.Node]

    @classmethod
    def of(cls, traced: TracedModel, number: int, *, readers: Readers, askers: Readers) -> SingleLayer:
        """The layer of that number, by who reads what and who asks for which shapes.

        Behind the last layer there is one that only puts the model's result together.
        """
        own = [node for node, layer in traced.layer_of.items() if layer == number]
        read = {node: readers.get(node, set()) | askers.get(node, set()) for node in (*readers, *askers)}
        takes = [node for node, layers in read.items() if number in layers and traced.layer_of.get(node) != number]
        gives = [node for node in own if max(read.get(node, {-1})) > number]
        piece = Piece(traced, range(number, number + 1), takes=[Crossing(node=node) for node in takes], copies=False)
        is_end = number == len(traced)
        return cls(
            module=piece.finish(None if is_end else [Crossing(node=node) for node in gives]),
            takes=tuple(takes),
            gives=tuple(gives),
            hands_on=tuple(node for node in gives if max(readers.get(node, {-1})) > number),
            reads_last=tuple(node for node in takes if max(read[node]) == number),
            overwrites=frozenset(written for node in own for written in node.meta.get(OVERWRITES, ())),
        )


class _Pass:
    """One minibatch in one layer: what backward needs of what it took and gave, and no more, as in training."""

    def __init__(self, layer: SingleLayer) -> None:
        self._layer = layer
        self._taken: list[Tensor] = []
        self._arguments: list[Tensor] = []
        self._given: list[GradientEdge | None] = []

    def enter(self, values: dict[fx.Node, Tensor]) -> None:
        """Cut what the layer reads off from the layers before; what nobody reads any more is forgotten."""
        for node in self._layer.takes:
            is_written = node in self._layer.overwrites
            leaf, argument = _cut_off_to_overwrite(values[node]) if is_written else _cut_off(values[node])
            self._taken.append(leaf)
            self._arguments.append(argument)
        for node in self._layer.reads_last:
            del values[node]

    def forward(self, values: dict[fx.Node, Tensor]) -> None:
        given = self._layer.module(*self._arguments)
        self._arguments.clear()
        self._given = [_edge(each) for each in given]
        values.update(zip(self._layer.gives, given, strict=True))

    def finish(self, loss: Loss | None) -> list[Tensor | None]:
        """The end of the model: its result, the loss, and the gradients to begin with."""
        result = self._layer.module(*self._arguments)
        given = list(tensors_in(result if loss is None else loss(result)))
        if loss is not None and [each.numel() for each in given] != [1]:
            shapes = ", ".join(str(tuple(each.shape)) for each in given) or "no tensor"
            raise MethodError(
                f"the loss must be a tensor of one number, but got {shapes}; "
                "give a function such as lambda output: F.cross_entropy(output, targets)"
            )
        self._given = [_edge(each) for each in given]
        return [torch.ones_like(each) for each in given]

    def backward(self, given: Sequence[Tensor | None], gradients: dict[fx.Node, Tensor]) -> None:
        """From the gradients of what it gave to those of what it took, which add up over all who read it."""
        pairs = zip(self._given, given, strict=True)
        known = [(edge, gradient) for edge, gradient in pairs if edge is not None and gradient is not None]
        if known:
            torch.autograd.backward([edge for edge, _ in known], [gradient for _, gradient in known])
        for node, leaf in zip(self._layer.takes, self._taken, strict=True):
            if leaf.grad is not None:
                gradients[node] = gradients[node] + leaf.grad if node in gradients else leaf.grad
        self._taken.clear()
        self._given.clear()

    @property
    def gives(self) -> tuple[fx.Node, ...]:
        return self._layer.gives


def _edge(tensor: Tensor) -> GradientEdge | None:
    """Where backward enters, without the tensor itself."""
    return get_gradient_edge(tensor) if tensor.requires_grad else None


def _cut_off(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """A leaf of autograd that gets the gradient, and the tensor to read: the same."""
    leaf = tensor.detach().requires_grad_(tensor.requires_grad)
    return leaf, leaf


def _cut_off_to_overwrite(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """A leaf must not be overwritten, and a copy would cost what training does not: the leaf has no memory."""
    leaf = tensor.new_empty(()).expand(tensor.shape).requires_grad_(tensor.requires_grad)
    argument: Tensor = _Overwritable.apply(leaf, tensor.detach())  # type: ignore[no-untyped-call]
    return leaf, argument


class _Overwritable(torch.autograd.Function):
    """A tensor over the memory of another, whose gradient goes to a leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, tensor: Tensor) -> Tensor:
        return tensor.new_empty(0).set_(tensor)  # type: ignore[call-overload, no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
