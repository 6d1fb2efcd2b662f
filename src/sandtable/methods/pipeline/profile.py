"""Profile: run a model layer by layer, and time each of them.

    profile(model, inputs, num_batches=10, loss=lambda output: F.cross_entropy(output, targets)).save("profile.json")

Layers run one after the other as they do in training, but what a layer reads is cut off from the layers before, so that
its backward pass can be timed alone. One minibatch warms up; of the others each layer gets the median. On a GPU the
clock is events on the stream, so the host runs ahead as it does in training; on a CPU it is the host's own.
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
from sandtable.methods.pipeline.clocks import DeviceClock, HostClock
from sandtable.methods.pipeline.layer_passes import Loss, Runner, SingleLayer
from sandtable.methods.pipeline.profile_file import LayerProfile, Profile
from sandtable.methods.pipeline.trace import TracedModel, trace, unchanged
from sandtable.methods.pipeline.tracer import SIZE_BYTES

__all__ = ["profile"]


def profile(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Tensor],
    *,
    num_batches: int = 10,
    loss: Loss | None = None,
    show_progress: bool = True,
) -> Profile:
    """Time every layer over `num_batches` minibatches like the example; the model stays as it is.

    `loss` makes one number of what the model returns, and counts for the last layer; without it backward begins with
    gradients of one.
    """
    if num_batches < 1:
        raise MethodError(f"a profile needs at least one minibatch, but got num_batches={num_batches}; try 10")
    traced = trace(model, example_inputs)
    inputs = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    device = next((each.device for each in (*model.parameters(), *inputs)), torch.device("cpu"))
    runner = Runner(traced, loss, DeviceClock() if device.type == "cuda" else HostClock())
    taken, total = [], 2 * len(traced) * (num_batches + 1)
    with unchanged(model), _own_gradients(model), _bar(show_progress, total) as tick:
        for _ in range(num_batches + 1):
            taken.append(runner.run(inputs, tick))
            model.zero_grad(set_to_none=True)
    seconds = [[median(column) for column in zip(*batches, strict=True)] for batches in zip(*taken[1:], strict=True)]
    rows = zip(traced.names, runner.layers, seconds, strict=True)
    return Profile(
        model=type(model).__name__,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        basis="measured",
        num_batches=num_batches,
        inputs=tuple(f"{'×'.join(map(str, each.shape))} {str(each.dtype).removeprefix('torch.')}" for each in inputs),
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
        weight_bytes=sum(each.numel() * each.element_size() for each in layer.module.parameters()),
    )


@contextmanager
def _own_gradients(model: nn.Module) -> Iterator[None]:
    """Gradients that were there come back afterwards."""
    before = {parameter: parameter.grad for parameter in model.parameters()}
    model.zero_grad(set_to_none=True)
    try:
        yield
    finally:
        for parameter, gradient in before.items():
            parameter.grad = gradient


@contextmanager
def _bar(is_shown: bool, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, if somebody is looking."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (is_shown and console.is_terminal)) as bar:
        task = bar.add_task("profiling", total=total)
        yield lambda: bar.advance(task)
