"""Evaluate the mean of all replicas; workers divide the test images among them.

In local SGD and gossip every worker has its own weights. Papers report the accuracy of their mean, and so do we.
Forming it costs one all-reduce, which is not the method's: its counters exclude it, and the training clock is stopped.
"""

import copy
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sandtable.study.batches import Batches

__all__ = ["Evaluation", "count_correct", "evaluate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """`disagreement` is the mean squared distance of the replicas to their mean, over the mean's square."""

    accuracy: float
    disagreement: float


def evaluate(model: nn.Module, batches: Batches) -> Evaluation:
    """Measure the accuracy of the mean of all replicas on all test images. Every worker must call this."""
    mean, distance = _mean_model(model)
    counts = torch.tensor([*count_correct(mean, batches), distance], dtype=torch.float64)
    dist.all_reduce(counts)
    correct, tested, distances = counts.tolist()
    return Evaluation(accuracy=correct / tested, disagreement=distances / dist.get_world_size())


@torch.no_grad()
def count_correct(model: nn.Module, batches: Batches) -> tuple[int, int]:
    """Return how many of this worker's test images the model gets right, and how many there are."""
    correct = tested = 0
    was_training = model.training
    model.eval()
    for inputs, targets in batches.test_share():
        correct += int((model(inputs).argmax(1) == targets).sum())
        tested += len(targets)
    model.train(was_training)
    return correct, tested


@torch.no_grad()
def _mean_model(model: nn.Module) -> tuple[nn.Module, float]:
    """Return a copy with the mean of all replicas' tensors, and this replica's relative squared distance to it."""
    mean = copy.deepcopy(model)
    own = [tensor for tensor in _tensors(model) if tensor.is_floating_point()]
    flat = torch.cat([tensor.reshape(-1).to(torch.float32) for tensor in own])
    total = flat.clone()
    dist.all_reduce(total)
    total /= dist.get_world_size()
    distance, square = float((flat - total).square().sum()), float(total.square().sum())
    targets = [tensor for tensor in _tensors(mean) if tensor.is_floating_point()]
    for target, values in zip(targets, torch.split(total, [tensor.numel() for tensor in own]), strict=True):
        target.copy_(values.view(target.shape))
    return mean, distance / max(square, 1e-30)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*(parameter.detach() for parameter in model.parameters()), *model.buffers()]
