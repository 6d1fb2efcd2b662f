"""One pass through a stage: with given weights, keeping activations or recomputing them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from sandtable.errors import MethodError
from sandtable.methods.pipeline.forms import Form, as_tuple, forms_of

__all__ = ["WrappedStage", "dry_run", "fitting", "forward"]


def forward(module: nn.Module, inputs: Sequence[Tensor], *, weights: Mapping[str, Tensor], recompute: bool) -> Any:
    """Run the stage. With `recompute`, keep only the inputs; the backward pass computes the rest again."""
    if not recompute:
        enter: Any = _Entrance.apply
        entering = tuple(enter(tensor) if tensor.requires_grad else tensor for tensor in inputs)
        return functional_call(module, dict(weights), entering)
    is_again = False

    def run(*tensors: Tensor) -> Any:
        nonlocal is_again
        # The second time, running statistics (BatchNorm) go to copies, so that a minibatch counts once.
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()} if is_again else {}
        is_again = True
        # A stage that begins in place must not overwrite the inputs of the second time.
        entering = tuple(tensor.clone() if tensor.requires_grad else tensor for tensor in tensors)
        return functional_call(module, {**weights, **buffers}, entering)

    return checkpoint(run, *inputs, use_reentrant=False)


class WrappedStage(nn.Module):
    """A stage with its own weights, for torch's schedules. `finish` computes the loss from the last stage's output."""

    def __init__(
        self, module: nn.Module, number: int, *, recompute: bool, finish: Callable[[Any], Tensor] | None
    ) -> None:
        super().__init__()
        self.module = module
        self._number = number
        self._recompute = recompute
        self._finish = finish
        self._is_tried = False

    def forward(self, *inputs: Tensor) -> Any:
        with fitting(self._number, () if self._is_tried else forms_of(inputs)):
            outputs = forward(self.module, inputs, weights={}, recompute=self._recompute)
        self._is_tried = True
        if self._finish is not None:
            return self._finish(outputs)
        # torch sends contiguous tensors only.
        return tuple(output.contiguous() for output in as_tuple(outputs))


def dry_run(module: nn.Module, inputs: Sequence[Tensor], *, device: torch.device) -> tuple[Form | None, ...]:
    """Return the forms of what leaves the stage for such inputs, without advancing statistics or random numbers."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        return forms_of(as_tuple(forward(module, inputs, weights=buffers, recompute=False)))


@contextmanager
def fitting(stage: int, forms: Sequence[Form | None]) -> Iterator[None]:
    """Report a failure in the block on new forms as a stage that does not fit the one before it."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if not forms or not stage:
            raise
        raise MethodError(
            f"what leaves stage {stage - 1} must fit what stage {stage} takes, but stage {stage} got "
            f"{', '.join(map(str, forms))} and failed: {error}; cut the model where stages fit, or check the inputs"
        ) from error


class _Entrance(torch.autograd.Function):
    """Same values and memory, but no leaf, so that a stage may write to its inputs in place, as ReLU can."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        return tensor.detach()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]
