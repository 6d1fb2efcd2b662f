"""Gossip: the mean is conserved, disagreement shrinks as the mixing matrix promises."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.methods.lossy import LargestHalf
from tests.methods.processes import run
from torch import Tensor, nn

from sandtable.errors import MethodError
from sandtable.methods.data import (
    Codec,
    Compression,
    DataParallel,
    Exchange,
    Gossip,
    Hierarchical,
    LocalSGD,
    NoCompression,
    RandomK,
    VectorSpec,
)
from sandtable.methods.data.exchange.partners import RotatingPartners
from sandtable.methods.transport.vectors import Vector
from sandtable.methods.transport.wire import Wire

_WORLD = 4
_LENGTH = 50
# A ring that hears the right neighbour only: doubly stochastic, not symmetric.
_ONE_WAY = [[0.6 if i == j else 0.4 if j == (i + 1) % _WORLD else 0.0 for j in range(_WORLD)] for i in range(_WORLD)]
_RING = [[1 / 3 if (i - j) % _WORLD in (0, 1, _WORLD - 1) else 0.0 for j in range(_WORLD)] for i in range(_WORLD)]


def _start(rank: int) -> Tensor:
    return torch.randn(_LENGTH, generator=torch.Generator().manual_seed(rank))


def _mix_often(exchange: Exchange, compression: Compression, num_turns: int, *, weights: bool) -> dict[str, Any]:
    """Return the vector after every turn, and what was sent."""
    wire = Wire()
    vector = Vector([torch.zeros(_LENGTH)])
    spec = VectorSpec.of(vector, compression, seed=0)
    mixer = exchange.weight_mixer(wire, spec) if weights else exchange.mixer(wire, spec)
    mixer.begin(vector)
    vector.data.copy_(_start(wire.rank))
    history = [vector.data.clone()]
    for turn in range(num_turns):
        mixer.mix(vector, turn=turn)
        history.append(vector.data.clone())
    return {"history": torch.stack(history), "counters": wire.counters}


def _mix_in_several_ways() -> dict[str, Any]:
    plain = NoCompression()
    return {
        "rotating": _mix_often(Gossip(), plain, 6, weights=True),
        "one way": _mix_often(Gossip(_ONE_WAY), plain, 6, weights=True),
        "sparse weights": _mix_often(Gossip(), LargestHalf(), 60, weights=True),
        "sparse ring": _mix_often(Gossip(_RING), LargestHalf(), 60, weights=True),
        "sparse gradients": _mix_often(Gossip(), LargestHalf(), 1, weights=False),
    }


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run(_WORLD, _mix_in_several_ways)


def _history(ranks: list[dict[str, Any]], name: str) -> Tensor:
    """Return turn × rank × component."""
    return torch.stack([found[name]["history"] for found in ranks], dim=1).double()


def _disagreement(vectors: Tensor) -> float:
    return float((vectors - vectors.mean(dim=0)).square().sum())


@pytest.mark.parametrize(("name", "partners"), [("rotating", RotatingPartners(_WORLD)), ("one way", None)])
def test_a_turn_multiplies_by_its_mixing_matrix(ranks, name, partners):
    partners = partners or Gossip(_ONE_WAY).partners(_WORLD)
    history = _history(ranks, name)
    for turn in range(6):
        torch.testing.assert_close(history[turn + 1], partners.matrix(turn) @ history[turn], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["rotating", "one way", "sparse weights", "sparse ring"])
def test_the_mean_of_all_ranks_is_conserved(ranks, name):
    means = _history(ranks, name).mean(dim=1)
    torch.testing.assert_close(means[-1], means[0], rtol=0, atol=2e-6)


@pytest.mark.parametrize(("name", "partners"), [("rotating", RotatingPartners(_WORLD)), ("one way", None)])
def test_disagreement_shrinks_as_the_matrix_promises(ranks, name, partners):
    partners = partners or Gossip(_ONE_WAY).partners(_WORLD)
    history = _history(ranks, name)
    for turn in range(6):
        second_singular_value = float(torch.linalg.svdvals(partners.matrix(turn))[1])
        promised = second_singular_value**2 * _disagreement(history[turn])
        assert _disagreement(history[turn + 1]) <= promised * (1 + 1e-5) + 1e-9


@pytest.mark.parametrize("name", ["sparse weights", "sparse ring"])
def test_compressed_weights_still_come_together(ranks, name):
    history = _history(ranks, name)
    assert _disagreement(history[-1]) < 1e-3 * _disagreement(history[0])


def test_of_sparse_gradients_only_what_was_sent_enters(ranks):
    history = _history(ranks, "sparse gradients")
    starts = history[0]
    sent = starts * (starts.abs() >= starts.abs().mean(dim=1, keepdim=True))
    for rank in range(_WORLD):
        expected = (starts[rank] + sent[rank - 1] + sent[(rank + 1) % _WORLD]) / 3
        torch.testing.assert_close(history[1][rank], expected, rtol=1e-5, atol=1e-6)


def test_messages_do_not_grow_with_the_number_of_ranks(ranks):
    counters = ranks[0]["rotating"]["counters"]
    # Distances 1, 2, 1, 2, 1, 2 of four ranks: two partners and one in turn.
    assert counters.messages == 3 * (2 + 1)
    assert counters.sent_bytes == 9 * 4 * _LENGTH


def test_every_pair_of_ranks_meets():
    partners = RotatingPartners(7)
    met = sum(partners.matrix(turn) > 0 for turn in range(partners.num_turns))
    assert torch.all(torch.as_tensor(met) > 0)


@dataclass(frozen=True)
class _Overshooting(LargestHalf):
    """Says four times what is."""

    def codec(self, num_elements: int, dtype: torch.dtype, device: torch.device | str = "cpu", seed: int = 0) -> Codec:
        codec = super().codec(num_elements, dtype, device, seed)
        encode = codec.encode
        codec.encode = lambda vector: encode(4 * vector)  # type: ignore[method-assign]
        return codec


def _overshoot() -> str:
    spec = VectorSpec.of(Vector([torch.zeros(_LENGTH)]), _Overshooting(), seed=0)
    try:
        Gossip().weight_mixer(Wire(), spec)
    except MethodError as error:
        return str(error)
    return "nothing"


def test_a_compression_that_overshoots_is_refused_for_weights():
    assert "try a compression such as TopK(0.01)" in run(2, _overshoot)[0]


def _refuse_on_every_rank() -> str:
    """Refuse on all ranks what the outer mixer cannot carry, though only first ranks make it."""
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exchange = Hierarchical(nodes=1, outer=Gossip())
    try:
        DataParallel(model, optimizer, sync=LocalSGD(2), exchange=exchange, compression=RandomK(0.2))
    except MethodError as error:
        return str(error)
    return "nothing"


def test_what_the_outer_exchange_of_weights_refuses_is_refused_by_every_rank():
    assert all("overshoots" in found for found in run(2, _refuse_on_every_rank))


def test_a_matrix_of_another_size_is_refused():
    with pytest.raises(MethodError, match="a row for each of the 4 ranks"):
        Gossip([[0.5, 0.5], [0.5, 0.5]]).check(4)
    assert not dist.is_initialized()


def test_a_matrix_of_what_is_no_number_is_refused():
    with pytest.raises(MethodError, match="weights of 0 or more"):
        Gossip([[float("nan")] * 2] * 2)
