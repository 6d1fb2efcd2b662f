"""How good the model is: workers share out the test images, and ask the mean of their replicas.

Under local SGD and gossip every worker has its own weights. What one would take home, and what the papers report, is
their mean, so that is what is asked. To form it costs one all-reduce that is not the method's: it goes past the
method's counters, while the training clock stands still.
"""

import copy
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sandtable.study.batches import Batches

__all__ = ["Finding", "correct", "evaluate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`disagreement` is the mean squared distance of the replicas to their mean, over the mean's own square."""

    accuracy: float
    disagreement: float


def evaluate(model: nn.Module, batches: Batches) -> Finding:
    """Accuracy of the mean of all replicas on all test images. Every worker must call it."""
    mean, distance = _mean_model(model)
    counts = torch.tensor([*correct(mean, batches), distance], dtype=torch.float64)
    dist.all_reduce(counts)
    right, tested, distances = counts.tolist()
    return Finding(accuracy=right / tested, disagreement=distances / dist.get_world_size())


@torch.no_grad()
def correct(model: nn.Module, batches: Batches) -> tuple[int, int]:
    """How many of this worker's test images the model gets right, and how many there are."""
    right = tested = 0
    was_training = model.training
    model.eval()
    for inputs, targets in batches.test_share():
        right += int((model(inputs).argmax(1) == targets).sum())
        tested += len(targets)
    model.train(was_training)
    return right, tested


@torch.no_grad()
def _mean_model(model: nn.Module) -> tuple[nn.Module, float]:
    """A copy with the mean of all replicas' weights and buffers, and this replica's relative squared distance to it."""
    mean = copy.deepcopy(model)
    own = [tensor for tensor in _tensors(model) if tensor.is_floating_point()]
    flat = torch.cat([tensor.reshape(-1).to(torch.float32) for tensor in own])
    total = flat.clone()
    dist.all_reduce(total)
    total /= dist.get_world_size()
    distance, square = float((flat - total).square().sum()), float(total.square().sum())
    places = [tensor for tensor in _tensors(mean) if tensor.is_floating_point()]
    for place, values in zip(places, torch.split(total, [tensor.numel() for tensor in own]), strict=True):
        place.copy_(values.view(place.shape))
    return mean, distance / max(square, 1e-30)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*(parameter.detach() for parameter in model.parameters()), *model.buffers()]
