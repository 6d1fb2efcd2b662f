"""One pass through a stage: with given weights, remembering activations or computing them again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from sandtable.errors import MethodError
from sandtable.methods.pipeline.forms import Form, as_tuple, forms_of

__all__ = ["Stage", "dry_run", "fitting", "forward"]


def forward(module: nn.Module, inputs: Sequence[Tensor], *, weights: Mapping[str, Tensor], recompute: bool) -> Any:
    """What the stage returns. `recompute`: only the inputs are kept, and the backward pass computes the rest again."""
    if not recompute:
        enter: Any = _Entrance.apply
        entering = tuple(enter(each) if each.requires_grad else each for each in inputs)
        return functional_call(module, dict(weights), entering)
    is_again = False

    def run(*tensors: Tensor) -> Any:
        nonlocal is_again
        # The second time statistics (BatchNorm) are written to copies: a minibatch counts once.
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()} if is_again else {}
        is_again = True
        # A stage that begins in place must not write over what the second time begins with.
        entering = tuple(each.clone() if each.requires_grad else each for each in tensors)
        return functional_call(module, {**weights, **buffers}, entering)

    return checkpoint(run, *inputs, use_reentrant=False)


class Stage(nn.Module):
    """A stage with its own weights, as a module. `finish` makes the loss of what the last stage returns."""

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
        # torch sends tensors as they lie in memory, and takes only such as lie in one piece.
        return tuple(each.contiguous() for each in as_tuple(outputs))


def dry_run(module: nn.Module, inputs: Sequence[Tensor], *, device: torch.device) -> tuple[Form | None, ...]:
    """What leaves the stage when such tensors enter it; neither its statistics nor random numbers move on."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        return forms_of(as_tuple(forward(module, inputs, weights=buffers, recompute=False)))


@contextmanager
def fitting(stage: int, forms: Sequence[Form | None]) -> Iterator[None]:
    """A stage that fails on forms it has never seen is a stage that does not fit the one before it."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if not forms or not stage:
            raise
        raise MethodError(
            f"what leaves stage {stage - 1} must fit what stage {stage} takes, but that was given "
            f"{', '.join(map(str, forms))} and failed: {error}; cut the model where stages fit, or check the inputs"
        ) from error


class _Entrance(torch.autograd.Function):
    """The same values and memory, but no leaf: what enters a stage may be written to in place, by a ReLU say."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        return tensor.detach()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]
