"""The backward pass of a minibatch uses exactly the weights of its forward pass, as a layer that checks shows."""

from typing import Any

import torch
from tests.methods.pipeline.training import batches
from tests.methods.processes import run
from torch import Tensor, nn
from torch.nn import functional as F

from sandtable.methods.pipeline import PipeDream, Pipeline

_SEEN: dict[str, list[Tensor]] = {"forward": [], "backward": [], "latest": []}


class Looking(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(inputs, weight)
        _SEEN["forward"].append(weight.clone())
        return inputs @ weight

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        inputs, weight = context.saved_tensors
        _SEEN["backward"].append(weight.clone())
        return gradients[0] @ weight.T, inputs.T @ gradients[0]


class Layer(nn.Module):
    def __init__(self, width: int, after: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, after) / 3)

    def forward(self, inputs: Tensor) -> Any:
        return Looking.apply(inputs, self.weight)


def look(vertical):
    torch.manual_seed(0)
    stages = [Layer(6, 5), Layer(5, 4), Layer(4, 3)]
    pipeline = Pipeline(
        stages,
        lambda parameters: torch.optim.SGD(parameters, lr=0.3),
        loss=F.cross_entropy,
        schedule=PipeDream(vertical_sync=vertical),
        timeout_s=40,
    )
    for inputs, targets in batches(8):
        pipeline.step(inputs, targets)
        _SEEN["latest"].append(latest(pipeline))
    pipeline.close()
    return _SEEN, list(pipeline.record.passes)


def test_backward_uses_the_weights_of_its_forward_though_newer_ones_are_there():
    for seen, passes in run(3, look, False):
        stage = passes[0].stage
        assert len(seen["forward"]) == 8
        for forward, backward in zip(seen["forward"], seen["backward"], strict=True):
            assert torch.equal(forward, backward)
        # Stage k of three is two minus k updates behind, and weights did change with each of them.
        for number in range(8):
            behind = max(0, number - (2 - stage))
            used = seen["forward"][number]
            assert (behind == 0) == torch.equal(used, seen["forward"][0])
        versions = {(each.minibatch, each.is_forward): each.version for each in passes}
        for number in range(8):
            assert versions[number, True] == versions[number, False] == max(0, number - (2 - stage))


def test_with_vertical_sync_the_last_stage_computes_with_old_weights_too():
    *_, (seen, _) = run(3, look, True)
    for forward, backward in zip(seen["forward"], seen["backward"], strict=True):
        assert torch.equal(forward, backward)
    assert torch.equal(seen["forward"][2], seen["forward"][0])
    # The step has made three updates by then, and the fourth minibatch meets the first of them.
    assert torch.equal(seen["forward"][3], seen["latest"][0])


def latest(pipeline):
    (module,) = pipeline.modules.values()
    return module.weight.detach().clone()
