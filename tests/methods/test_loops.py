"""Loops as they are: clipping, unfreezing, evaluating on one rank, and optimizers that need more than gradients."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.methods.processes import run
from tests.methods.training import batches, flat_weights, make_model, sgd
from torch import Tensor, nn
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.data import DataParallel, LocalSGD

_BUCKETS: dict[str, Any] = {"bucket_bytes": 300}


def _backward(model: nn.Module, *, step: int = 0) -> None:
    inputs, targets = batches(1, 2, first=step)[0][dist.get_rank()]
    F.cross_entropy(model(inputs), targets).backward()


def _clip_before_step(**settings: Any) -> Tensor | str:
    model = make_model()
    parallel = DataParallel(model, sgd(model), **settings)
    _backward(model)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    before = flat_weights(model)
    try:
        parallel.step()
    except MethodError as error:
        return str(error)
    finally:
        parallel.close()
    return flat_weights(model) - before


def _clip_in_hook() -> Tensor:
    model = make_model()
    optimizer = sgd(model)

    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    optimizer.register_step_pre_hook(clip)
    parallel = DataParallel(model, optimizer, **_BUCKETS)
    before = flat_weights(model)
    _backward(model)
    parallel.step()
    parallel.close()
    return flat_weights(model) - before


def _unfreeze(*, anew: bool) -> Tensor | str:
    model = make_model()
    first = next(model.parameters())
    first.requires_grad_(False)
    parallel = DataParallel(model, sgd(model))
    _backward(model)
    parallel.step()
    first.requires_grad_(True)
    if anew:
        parallel.close()
        parallel = DataParallel(model, sgd(model))
    try:
        for step in (1, 2):
            _backward(model, step=step)
            parallel.step()
    except MethodError as error:
        return str(error)
    return flat_weights(model)


def _evaluate_on_one_rank() -> Tensor:
    model = make_model()
    parallel = DataParallel(model, sgd(model), sync=LocalSGD(1, average="before"))
    for step in range(2):
        _backward(model, step=step)
        parallel.step()
    parallel.synchronize()
    if dist.get_rank() == 0:
        model.eval()
        model(torch.ones(2, 6))  # with gradients, as one forgets no_grad()
    dist.barrier()
    parallel.close()  # would wait for ever for what only rank 0 had begun
    return flat_weights(model)


class _NewTensors(nn.Module):
    """Puts a new tensor in the place of its buffer at every pass, as many modules do."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, inputs: Tensor) -> Tensor:
        self.mean = 0.5 * self.mean + 0.5 * inputs.mean(0)
        outputs: Tensor = self.linear(inputs)
        return outputs


def _buffers(policy: str) -> Tensor:
    model = _NewTensors()
    parallel = DataParallel(model, sgd(model), buffers=policy)
    model(torch.full((4, 2), float(dist.get_rank() + 1))).sum().backward()
    parallel.step()
    parallel.synchronize()
    return model.mean


def _closure() -> str:
    model = make_model()
    try:
        DataParallel(model, torch.optim.LBFGS(model.parameters()))
    except MethodError as error:
        return str(error)
    return "nothing"


def _everything() -> dict[str, Any]:
    return {
        "clipped": _clip_before_step(overlap=False),
        "clipped with overlap": _clip_before_step(**_BUCKETS),
        "clipped in a hook": _clip_in_hook(),
        "unfrozen": _unfreeze(anew=False),
        "unfrozen anew": _unfreeze(anew=True),
        "evaluated": _evaluate_on_one_rank(),
        **{f"buffers {policy}": _buffers(policy) for policy in ("average", "first", "local")},
        "closure": _closure(),
    }


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run(2, _everything)


def test_gradients_clipped_after_they_have_left_are_refused_with_the_remedy(ranks):
    for found in ranks:
        assert "register_step_pre_hook" in found["clipped with overlap"]


def test_gradients_may_be_clipped_before_they_leave_or_as_a_mean(ranks):
    for name in ("clipped", "clipped in a hook"):
        assert all(torch.equal(found[name], ranks[0][name]) for found in ranks)
        assert 0 < ranks[0][name].norm() <= 0.1 * 1e-3 * 1.001


def test_a_parameter_that_is_unfrozen_wants_a_new_object(ranks):
    assert "make a new DataParallel" in ranks[0]["unfrozen"]
    assert torch.equal(ranks[0]["unfrozen anew"], ranks[1]["unfrozen anew"])


def test_an_evaluation_on_one_rank_sends_nothing(ranks):
    assert torch.equal(ranks[0]["evaluated"], ranks[1]["evaluated"])


def test_buffers_that_are_replaced_are_exchanged_as_they_are_now(ranks):
    for rank, found in enumerate(ranks):
        assert found["buffers average"].tolist() == [0.75, 0.75]
        assert found["buffers first"].tolist() == [0.5, 0.5]
        assert found["buffers local"].tolist() == [0.5 * (rank + 1)] * 2


def test_an_optimizer_that_needs_a_closure_is_refused(ranks):
    assert "LBFGS.step needs closure" in ranks[0]["closure"]
