"""Profile: run a model layer by layer, and time each layer.

    profile(model, inputs, num_batches=10, loss=lambda output: F.cross_entropy(output, targets)).save("profile.json")

Layers run one after the other as in training, but each layer's inputs are detached from the layers before, so that its
backward pass can be timed alone. The first minibatch is warm-up; each layer gets the median over the others. On a GPU
the clock is events on the stream, so the host runs ahead as in training; on a CPU it is the host's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from sandtable.errors import MethodError
from sandtable.methods.pipeline.layer_passes import DeviceClock, HostClock, Loss, Runner, SingleLayer
from sandtable.methods.pipeline.trace import TracedModel, trace, unchanged
from sandtable.methods.pipeline.tracer import SIZE_BYTES
from sandtable.pipeline_profile import LayerProfile, Profile

__all__ = ["profile"]


def profile(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Tensor],
    *,
    num_batches: int = 10,
    loss: Loss | None = None,
    show_progress: bool = True,
) -> Profile:
    """Time every layer over `num_batches` minibatches like the example; the model is left unchanged.

    `loss` computes one number from the model's output, and counts for the last layer; without it, backward begins with
    gradients of one.
    """
    if num_batches < 1:
        raise MethodError(f"a profile needs at least one minibatch, but got num_batches={num_batches}; try 10")
    traced = trace(model, example_inputs)
    inputs = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    device = next((tensor.device for tensor in (*model.parameters(), *inputs)), torch.device("cpu"))
    runner = Runner(traced, loss, DeviceClock() if device.type == "cuda" else HostClock())
    seconds_of_batches, total = [], 2 * len(traced) * (num_batches + 1)
    with unchanged(model), _own_gradients(model), _bar(show_progress, total) as tick:
        for _ in range(num_batches + 1):
            seconds_of_batches.append(runner.run(inputs, tick))
            model.zero_grad(set_to_none=True)
    by_layer = zip(*seconds_of_batches[1:], strict=True)
    seconds = [[median(column) for column in zip(*batches, strict=True)] for batches in by_layer]
    rows = zip(traced.names, runner.layers, seconds, strict=True)
    return Profile(
        model=type(model).__name__,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        basis="measured",
        num_batches=num_batches,
        inputs=tuple(
            f"{'×'.join(map(str, value.shape))} {str(value.dtype).removeprefix('torch.')}" for value in inputs
        ),
        layers=tuple(_layer(traced, name, layer, *passes) for name, layer, passes in rows),
        edges=tuple((traced.names[source], traced.names[reader]) for source, reader in traced.edges()),
        whole=traced.whole,
    )


def _layer(traced: TracedModel, name: str, layer: SingleLayer, forward_s: float, backward_s: float) -> LayerProfile:
    return LayerProfile(
        name=name,
        kind=type(traced.attribute(name.partition("#")[0])).__name__,
        forward_s=forward_s,
        backward_s=backward_s,
        activation_bytes=sum(node.meta[SIZE_BYTES] for node in layer.hands_on),
        weight_bytes=sum(weight.numel() * weight.element_size() for weight in layer.module.parameters()),
    )


@contextmanager
def _own_gradients(model: nn.Module) -> Iterator[None]:
    """Start with empty gradients; restore the earlier ones after the block."""
    before = {parameter: parameter.grad for parameter in model.parameters()}
    model.zero_grad(set_to_none=True)
    try:
        yield
    finally:
        for parameter, gradient in before.items():
            parameter.grad = gradient


@contextmanager
def _bar(is_shown: bool, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on standard error if that is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (is_shown and console.is_terminal)) as bar:
        task = bar.add_task("profiling", total=total)
        yield lambda: bar.advance(task)
