"""Layer passes: run one minibatch through the layers of a model one by one, forward and backward, and time each.

Each layer's inputs are detached from the layers before, so that its backward pass begins and ends with it. Gradients
are carried from layer to layer by hand, and nothing is kept that training would not keep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sandtable.errors import MethodError
from sandtable.methods.pipeline.cut import Crossing, StageBuilder
from sandtable.methods.pipeline.trace import TracedModel
from sandtable.methods.pipeline.tracer import OVERWRITES, tensors_in

__all__ = ["DeviceClock", "HostClock", "Loss", "Runner", "SingleLayer"]

Loss = Callable[[Any], Tensor]
Readers = Mapping[fx.Node, set[int]]
"""The layers that read a tensor, by the node that makes it."""
Span = tuple[Any, Any]
"""Marks of a clock: begin and end."""
T = TypeVar("T")


class Clock(Protocol):
    """Takes marks on a device, and returns the seconds between two of them."""

    def mark(self) -> Any: ...

    def seconds(self, span: tuple[Any, Any]) -> float: ...

    def wait(self) -> None:
        """Wait until all marks have been reached."""


class HostClock:
    """The host's own clock, for work on the CPU."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, span: tuple[float, float]) -> float:
        return span[1] - span[0]

    def wait(self) -> None: ...


class DeviceClock:
    """Events on the stream. On virtual GPUs `sandtable.planner` looks up their times, in the order of recording."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, span: tuple[torch.cuda.Event, torch.cuda.Event]) -> float:
        return float(span[0].elapsed_time(span[1])) / 1e3

    def wait(self) -> None:
        torch.cuda.synchronize()


class Runner:
    """Runs a minibatch through all layers, one by one, forward and backward."""

    def __init__(self, traced: TracedModel, loss: Loss | None, clock: Clock) -> None:
        self._inputs, self._loss, self._clock = traced.inputs, loss, clock
        readers, shape_readers = traced.readers(), traced.readers(of_shapes=True)
        *self.layers, self._end = (
            SingleLayer.of(traced, number, readers=readers, shape_readers=shape_readers)
            for number in range(len(traced) + 1)
        )

    def run(self, inputs: Sequence[Tensor], tick: Callable[[], None]) -> list[tuple[float, float]]:
        """Return the seconds forward and backward of each layer; the loss counts for the last one."""
        values = {node: tensor.clone() for node, tensor in zip(self._inputs, inputs, strict=True)}
        gradients: dict[fx.Node, Tensor] = {}
        passes = [_Pass(layer) for layer in self.layers]
        end = _Pass(self._end)
        forward, backward = [], []
        for layer_pass in passes:
            layer_pass.enter(values)
            forward.append(self._timed(partial(layer_pass.forward, values))[0])
            tick()
        end.enter(values)
        span, ones = self._timed(partial(end.finish, self._loss))
        forward.append(span)
        backward.append(self._timed(partial(end.backward, ones, gradients))[0])
        while passes:
            layer_pass = passes.pop()
            given = [gradients.pop(node, None) for node in layer_pass.gives]
            backward.append(self._timed(partial(layer_pass.backward, given, gradients))[0])
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
        """Return when the work began and ended, and its result."""
        begin = self._clock.mark()
        result = work()
        return (begin, self._clock.mark()), result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SingleLayer:
    """One layer as a separate module, and the nodes of the tensors it takes and returns."""

    module: nn.Module
    takes: tuple[fx.Node, ...]
    gives: tuple[fx.Node, ...]
    hands_on: tuple[fx.Node, ...]
    """Those it gives whose values are read; of the others only the shape is."""
    reads_last: tuple[fx.Node, ...]
    """Those it takes that no later layer takes."""
    overwrites: frozenset[fx.Node]

    @classmethod
    def of(cls, traced: TracedModel, number: int, *, readers: Readers, shape_readers: Readers) -> SingleLayer:
        """Return the layer of that number, given which layers read which tensors and which shapes.

        After the last layer comes one that only assembles the model's result.
        """
        own = [node for node, layer in traced.layer_of.items() if layer == number]
        read = {node: readers.get(node, set()) | shape_readers.get(node, set()) for node in (*readers, *shape_readers)}
        takes = [node for node, layers in read.items() if number in layers and traced.layer_of.get(node) != number]
        gives = [node for node in own if max(read.get(node, {-1})) > number]
        builder = StageBuilder(
            traced, range(number, number + 1), takes=[Crossing(node=node) for node in takes], copies=False
        )
        is_end = number == len(traced)
        return cls(
            module=builder.build(None if is_end else [Crossing(node=node) for node in gives]),
            takes=tuple(takes),
            gives=tuple(gives),
            hands_on=tuple(node for node in gives if max(readers.get(node, {-1})) > number),
            reads_last=tuple(node for node in takes if max(read[node]) == number),
            overwrites=frozenset(written for node in own for written in node.meta.get(OVERWRITES, ())),
        )


class _Pass:
    """One minibatch in one layer. It keeps what backward needs and no more, as training does."""

    def __init__(self, layer: SingleLayer) -> None:
        self._layer = layer
        self._taken: list[Tensor] = []
        self._arguments: list[Tensor] = []
        self._given: list[GradientEdge | None] = []

    def enter(self, values: dict[fx.Node, Tensor]) -> None:
        """Detach what the layer reads from the layers before, and forget what no later layer reads."""
        for node in self._layer.takes:
            is_written = node in self._layer.overwrites
            leaf, argument = _detached_to_overwrite(values[node]) if is_written else _detached(values[node])
            self._taken.append(leaf)
            self._arguments.append(argument)
        for node in self._layer.reads_last:
            del values[node]

    def forward(self, values: dict[fx.Node, Tensor]) -> None:
        given = self._layer.module(*self._arguments)
        self._arguments.clear()
        self._given = [_edge(tensor) for tensor in given]
        values.update(zip(self._layer.gives, given, strict=True))

    def finish(self, loss: Loss | None) -> list[Tensor | None]:
        """Compute the model's result and the loss, and return the gradients that backward begins with."""
        result = self._layer.module(*self._arguments)
        given = list(tensors_in(result if loss is None else loss(result)))
        if loss is not None and [tensor.numel() for tensor in given] != [1]:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in given) or "no tensor"
            raise MethodError(
                f"the loss must be a tensor of one number, but got {shapes}; "
                "give a function such as lambda output: F.cross_entropy(output, targets)"
            )
        self._given = [_edge(tensor) for tensor in given]
        return [torch.ones_like(tensor) for tensor in given]

    def backward(self, given: Sequence[Tensor | None], gradients: dict[fx.Node, Tensor]) -> None:
        """Turn the gradients of what it gave into those of what it took, which add up over all readers."""
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
    """Return where backward enters, without keeping the tensor itself."""
    return get_gradient_edge(tensor) if tensor.requires_grad else None


def _detached(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return an autograd leaf that gets the gradient, and the tensor to read, which is the same."""
    leaf = tensor.detach().requires_grad_(tensor.requires_grad)
    return leaf, leaf


def _detached_to_overwrite(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return a leaf that gets the gradient, and a tensor to read and overwrite.

    A leaf must not be overwritten, and a copy would cost what training does not; so the leaf has no memory.
    """
    leaf = tensor.new_empty(()).expand(tensor.shape).requires_grad_(tensor.requires_grad)
    argument: Tensor = _Overwritable.apply(leaf, tensor.detach())  # type: ignore[no-untyped-call]
    return leaf, argument


class _Overwritable(torch.autograd.Function):
    """A view of another tensor's memory, whose gradient goes to a leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, tensor: Tensor) -> Tensor:
        return tensor.new_empty(0).set_(tensor)  # type: ignore[call-overload, no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
