"""What every legal combination of sync, exchange and compression must do, and that others are refused."""

import copy
import itertools
from typing import Any

import pytest
import torch
from tests.methods.processes import run
from tests.methods.training import flat_weights, make_model, step_through
from torch import nn

from sandtable.errors import MethodError
from sandtable.methods.data import (
    QSGD,
    AllReduce,
    BulkSynchronous,
    Compression,
    DataParallel,
    DiLoCo,
    Exchange,
    Gossip,
    Hierarchical,
    LocalSGD,
    MomentumCorrection,
    NoCompression,
    NoLoCo,
    PostLocalSGD,
    RandomK,
    SlowMo,
    Sync,
    Threshold,
    TopK,
    check_combination,
)

_WORLD = 4
_SYNCS: tuple[Sync, ...] = (
    BulkSynchronous(),
    LocalSGD(1),
    LocalSGD(2),
    LocalSGD(2, average="before"),
    LocalSGD(4, parts=2),
    LocalSGD(2, outer=SlowMo()),
    PostLocalSGD(switch_at=2, period=2),
    DiLoCo(period=2),
    NoLoCo(period=2),
)
_EXCHANGES: dict[str, Exchange] = {
    "all-reduce": AllReduce(),
    "ring": AllReduce("ring"),
    "gossip": Gossip(),
    "gossip by matrix": Gossip([[0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0, 0, 0.5, 0.5]]),
    "two levels": Hierarchical(nodes=2),
    "two levels, gossip": Hierarchical(nodes=2, outer=Gossip()),
}
_COMPRESSIONS: tuple[Compression, ...] = (NoCompression(), Threshold(share=0.25), QSGD(bits=4))
_STEPS = 4


def _is_legal(sync: Sync, exchange: Exchange, compression: Compression) -> bool:
    try:
        check_combination(sync, exchange, compression, num_ranks=_WORLD)
    except MethodError:
        return False
    return True


def _momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)


def _legal(name: str, compression: Compression) -> list[Sync]:
    return [sync for sync in _SYNCS if _is_legal(sync, _EXCHANGES[name], compression)]


def _examine(sync: Sync, exchange: Exchange, compression: Compression) -> dict[str, Any]:
    settings: dict[str, Any] = {"sync": sync, "exchange": exchange, "compression": compression}
    model = make_model()
    optimizer = _momentum(model)
    parallel = DataParallel(model, optimizer, **settings)
    step_through(model, parallel, _STEPS)
    counters = parallel.wire.counters
    explained = parallel.explain()
    found = {
        "weights": flat_weights(model),
        "sent_bytes": counters.sent_bytes,
        "messages": counters.messages,
        "explained": (explained.sent_bytes * _STEPS, explained.messages * _STEPS),
    }
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), parallel.state_dict()))
    step_through(model, parallel, _STEPS, first=_STEPS)
    found["uninterrupted"] = flat_weights(model)
    found["resumed"] = _resume(saved, settings)
    parallel.synchronize()
    found["synchronized"] = flat_weights(model)
    return found


def _resume(saved: tuple[dict[str, Any], dict[str, Any], dict[str, Any]], settings: dict[str, Any]) -> torch.Tensor:
    model = make_model()
    optimizer = _momentum(model)
    parallel = DataParallel(model, optimizer, **settings)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    parallel.load_state_dict(saved[2])
    step_through(model, parallel, _STEPS, first=_STEPS)
    return flat_weights(model)


def _examine_all(name: str, compression: Compression) -> list[dict[str, Any]]:
    return [_examine(sync, _EXCHANGES[name], compression) for sync in _legal(name, compression)]


@pytest.mark.parametrize("compression", _COMPRESSIONS, ids=str)
@pytest.mark.parametrize("name", _EXCHANGES)
def test_every_legal_combination_keeps_the_contract(name, compression):
    ranks = run(_WORLD, _examine_all, name, compression)
    for number, sync in enumerate(_legal(name, compression)):
        label = f"{sync}, {name}, {compression}"
        found = [results[number] for results in ranks]
        for rank in found:
            assert torch.isfinite(rank["uninterrupted"]).all(), label
            assert torch.equal(rank["resumed"], rank["uninterrupted"]), label
            assert torch.equal(rank["synchronized"], found[0]["synchronized"]), label
        if _meets_at_the_end(sync, _EXCHANGES[name]):
            assert all(torch.equal(rank["weights"], found[0]["weights"]) for rank in found), label
        if compression.is_lossless and _is_whole_round(sync) and "two levels" not in name:
            sent, messages = found[0]["explained"]
            # Gossip by a matrix: ranks at the ends have fewer partners than the average.
            mean = [sum(rank[key] for rank in found) / _WORLD for key in ("sent_bytes", "messages")]
            assert mean == pytest.approx([sent, messages], rel=0.01), label


def _is_whole_round(sync: Sync) -> bool:
    """Return whether four steps have the formula's average of exchanges: partners rotate over two turns."""
    return not isinstance(sync, PostLocalSGD) and not (isinstance(sync, LocalSGD) and sync.parts > 1)


def _meets_at_the_end(sync: Sync, exchange: Exchange) -> bool:
    is_after = not isinstance(sync, LocalSGD) or (sync.average == "after" and sync.parts == 1)
    return exchange.reaches_all and is_after


def test_illegal_combinations_are_refused_with_rule_and_remedy():
    refused = [
        (sync, exchange, compression)
        for sync, exchange, compression in itertools.product(_SYNCS, _EXCHANGES.values(), _COMPRESSIONS)
        if not _is_legal(sync, exchange, compression)
    ]
    # Outer optimizers that do not pull over gossip, and compressed post-local SGD over gossip.
    assert len(refused) == 2 * 3 * len(_COMPRESSIONS) + 3 * (len(_COMPRESSIONS) - 1)
    for combination in refused:
        with pytest.raises(MethodError, match=r"must .*, but got .*; try "):
            check_combination(*combination, num_ranks=_WORLD)


def test_what_overshoots_as_a_change_of_weights_is_refused_before_there_is_a_model():
    with pytest.raises(MethodError, match=r"must .*, but .* overshoots; try "):
        check_combination(LocalSGD(2), Gossip(), RandomK(0.1), num_ranks=_WORLD)
    check_combination(LocalSGD(2), AllReduce(), RandomK(0.1), num_ranks=_WORLD)


@pytest.mark.parametrize(("sync", "exchange"), [(BulkSynchronous(), Gossip()), (LocalSGD(2), AllReduce())], ids=str)
def test_momentum_correction_is_for_gradients_that_go_to_all(sync, exchange):
    compression = TopK(0.1, momentum=MomentumCorrection())
    check_combination(BulkSynchronous(), AllReduce(), compression, num_ranks=_WORLD)
    with pytest.raises(MethodError, match=r"momentum correction must .*, but got .*; try "):
        check_combination(sync, exchange, compression, num_ranks=_WORLD)
