"""Models as they are: accumulation, running statistics, unused parameters, several dtypes, sparse gradients."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.methods.lossy import LargestHalf
from tests.methods.processes import run
from tests.methods.training import batches, flat_weights, make_model, sgd, train_alone
from torch import Tensor, nn
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.data import (
    QSGD,
    AllReduce,
    BulkSynchronous,
    Compression,
    DataParallel,
    Gossip,
    Hierarchical,
    LocalSGD,
    TopK,
)
from sandtable.methods.server import ParameterServer


class _Branches(nn.Module):
    """One branch for everybody, one for rank 0 only, one for nobody."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.all = nn.Linear(3, 3)
        self.some = nn.Linear(3, 3)
        self.none = nn.Linear(3, 3)

    def forward(self, inputs: Tensor, *, is_first: bool) -> Tensor:
        outputs: Tensor = self.all(inputs)
        return outputs + self.some(inputs) if is_first else outputs


def _accumulate(*, overlap: bool) -> Tensor:
    model = make_model()
    parallel = DataParallel(model, sgd(model), overlap=overlap, bucket_bytes=300)
    for ranks in batches(5, 2):
        inputs, targets = ranks[dist.get_rank()]
        with parallel.no_sync():
            (F.cross_entropy(model(inputs[:2]), targets[:2]) / 2).backward()
        (F.cross_entropy(model(inputs[2:]), targets[2:]) / 2).backward()
        parallel.step()
    parallel.close()
    return flat_weights(model)


def _backward_twice() -> str:
    model = make_model()
    parallel = DataParallel(model, sgd(model), bucket_bytes=300)
    for _ in range(2):
        try:
            model(torch.ones(2, 6)).sum().backward()
        except MethodError as error:
            return str(error)
    parallel.close()
    return "nothing"


def _branches(**settings: Any) -> dict[str, Tensor]:
    model = _Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    parallel = DataParallel(model, optimizer, **settings)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    model(torch.ones(1, 3), is_first=dist.get_rank() == 0).sum().backward()
    parallel.step()
    parallel.close()
    return {name: parameter.detach() - before[name] for name, parameter in model.named_parameters()} | {
        "start": before["some.bias"]
    }


def _statistics(policy: str) -> tuple[Tensor, Tensor, int]:
    norm = nn.BatchNorm1d(2)
    model = nn.Sequential(norm, nn.Linear(2, 1))
    parallel = DataParallel(model, sgd(model), buffers=policy)
    for step in range(3):
        model(torch.full((2, 2), float(10 * dist.get_rank() + step))).sum().backward()
        parallel.step()
    assert norm.running_mean is not None
    assert norm.num_batches_tracked is not None
    own = norm.running_mean.clone()
    parallel.synchronize()
    return own, norm.running_mean.clone(), int(norm.num_batches_tracked)


def _dtypes() -> list[Tensor]:
    torch.manual_seed(3)
    layers = [nn.Linear(2, 2).to(dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
    model = nn.ModuleList(layers)
    parallel = DataParallel(model, sgd(model))
    for layer in layers:
        layer(torch.full((1, 2), float(dist.get_rank()), dtype=layer.weight.dtype)).sum().backward()
    parallel.step()
    return [parameter.detach() for parameter in model.parameters()]


def _embedding(sync: Any) -> Tensor:
    torch.manual_seed(4)
    model = nn.Embedding(6, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)
    parallel = DataParallel(model, optimizer, sync=sync)
    for step in range(3):
        rows = torch.tensor([dist.get_rank(), 2 + step])
        model(rows).square().sum().backward()
        parallel.step()
    return model.weight.detach()


def _frozen() -> tuple[Tensor, Tensor]:
    model = make_model()
    next(model.parameters()).requires_grad_(False)
    before = flat_weights(model)
    parallel = DataParallel(model, sgd(model), bucket_bytes=300)
    model(torch.ones(2, 6)).sum().backward()
    parallel.step()
    return before, flat_weights(model)


def _channels_last(*, overlap: bool) -> Tensor:
    model = _images()
    parallel = DataParallel(model, _fused(model), overlap=overlap, bucket_bytes=200)
    for step in range(3):
        model(_pictures(step, dist.get_rank())).square().mean().backward()
        parallel.step()
    parallel.close()
    return flat_weights(model)


def _images() -> nn.Module:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 2, 3))
    moved: nn.Module = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return moved


def _fused(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01, fused=True)


def _pictures(step: int, rank: int) -> Tensor:
    return torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(10 * step + rank))


def _used_by_turns(compression: Compression, **settings: Any) -> dict[str, Tensor]:
    """Return how far the weights are from the sum of all gradients, after many steps that use the other branch."""
    model = nn.ModuleDict({"early": nn.Linear(8, 1, bias=False), "late": nn.Linear(8, 1, bias=False)})
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    parallel = DataParallel(model, torch.optim.SGD(model.parameters(), lr=1.0), compression=compression, **settings)
    total = torch.zeros(1, 8)
    for step in range(60):
        inputs = torch.randn(1, 8, generator=torch.Generator().manual_seed(step))
        total += inputs if step < 5 else 0
        (model["early"](inputs) if step < 5 else model["late"](inputs / 100)).sum().backward()
        parallel.step()
    parallel.close()
    return {"total": total, "stepped": -flat_weights(model["early"]).view(1, 8)}


def _refusals() -> list[str]:
    found = []
    embedding, plain = nn.Embedding(4, 2, sparse=True), make_model()
    for model, settings in (
        (embedding, {"exchange": Gossip()}),
        (plain, {"buffers": "mean"}),
        (plain, {"exchange": Hierarchical(nodes=3)}),
        (plain, {"sync": "often"}),
        (nn.Tanh(), {}),
    ):
        try:
            DataParallel(model, sgd(plain), **settings)
        except MethodError as error:
            found.append(str(error))
    return found


def _everything() -> dict[str, Any]:
    return {
        "accumulated": _accumulate(overlap=False),
        "accumulated with overlap": _accumulate(overlap=True),
        "twice": _backward_twice(),
        "branches": _branches(overlap=False),
        "branches with overlap": _branches(bucket_bytes=20),
        "branches compressed": _branches(compression=LargestHalf()),
        "branches gossiped": _branches(exchange=Gossip()),
        **{f"statistics {policy}": _statistics(policy) for policy in ("average", "first", "local")},
        "dtypes": _dtypes(),
        "embedding bulk": _embedding(BulkSynchronous()),
        "embedding local": _embedding(LocalSGD(1)),
        "frozen": _frozen(),
        "channels last": _channels_last(overlap=False),
        "channels last with overlap": _channels_last(overlap=True),
        **{f"by turns {compression}": _used_by_turns(compression) for compression in (TopK(0.1), QSGD(4))},
        "by turns served": _used_by_turns(TopK(0.1), exchange=ParameterServer(shards=2)),
        "refusals": _refusals(),
    }


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run(2, _everything)


@pytest.mark.parametrize("name", ["accumulated", "accumulated with overlap"])
def test_accumulated_gradients_equal_one_large_batch(ranks, name):
    for found in ranks:
        torch.testing.assert_close(found[name], train_alone(2), rtol=1e-5, atol=1e-6)


def test_a_second_backward_pass_after_gradients_have_left_is_refused(ranks):
    assert "no_sync" in ranks[0]["twice"]


@pytest.mark.parametrize("name", ["branches", "branches with overlap", "branches compressed", "branches gossiped"])
def test_unused_parameters_have_no_gradient_and_partly_used_ones_the_mean(ranks, name):
    first, second = (found[name] for found in ranks)
    for key in first:
        assert torch.equal(first[key], second[key]), key
    # Nobody used it: not even weight decay touches it.
    assert not first["none.bias"].any()
    # Half the ranks used it, with gradient 1: -0.1 · (1/2 + 0.5·w).
    if "compressed" not in name:
        torch.testing.assert_close(first["some.bias"], -0.1 * (0.5 + 0.5 * first["start"]))


def test_running_statistics_follow_their_policy(ranks):
    own = [found["statistics average"][0] for found in ranks]
    for rank, found in enumerate(ranks):
        torch.testing.assert_close(found["statistics average"][1], (own[0] + own[1]) / 2)
        torch.testing.assert_close(found["statistics first"][1], own[0])
        torch.testing.assert_close(found["statistics local"][1], own[rank])
        assert found["statistics average"][2] == 3


def test_parameters_of_several_dtypes_are_averaged_each_in_its_own(ranks):
    first, second = (found["dtypes"] for found in ranks)
    assert [tensor.dtype for tensor in first[::2]] == [torch.float32, torch.float64, torch.bfloat16]
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_sparse_gradients_stay_sparse_and_equal_one_process(ranks):
    torch.manual_seed(4)
    model = nn.Embedding(6, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        (sum(model(torch.tensor([rank, 2 + step])).square().sum() for rank in range(2)) / 2).backward()
        optimizer.step()
    for found in ranks:
        torch.testing.assert_close(found["embedding bulk"], model.weight.detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(ranks[0]["embedding local"], ranks[1]["embedding local"])


def test_frozen_parameters_stay(ranks):
    before, after = ranks[0]["frozen"]
    assert torch.equal(before[:96], after[:96])
    assert not torch.equal(before[96:], after[96:])


@pytest.mark.parametrize("name", ["channels last", "channels last with overlap"])
def test_a_fused_optimizer_finds_gradients_laid_out_like_their_parameters(ranks, name):
    model = _images()
    optimizer = _fused(model)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.cat([_pictures(step, rank) for rank in range(2)])).square().mean().backward()
        optimizer.step()
    for found in ranks:
        torch.testing.assert_close(found[name], flat_weights(model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["TopK(0.1)", "QSGD(4)", "served"])
def test_what_was_held_back_of_a_parameter_arrives_also_when_nobody_uses_it(ranks, name):
    for found in ranks:
        turns = found[f"by turns {name}"]
        torch.testing.assert_close(turns["stepped"], turns["total"], rtol=0, atol=0.1)


def test_what_cannot_work_is_refused_with_the_remedy(ranks):
    sparse, policy, nodes, sync, empty = ranks[0]["refusals"]
    assert "try exchange=AllReduce()" in sparse
    assert 'try "average"' in policy
    assert "nodes (3) must divide the number of ranks (2); try 1, 2" in nodes
    assert "LocalSGD(16)" in sync
    assert "none to train" in empty
    assert AllReduce().reaches_all
