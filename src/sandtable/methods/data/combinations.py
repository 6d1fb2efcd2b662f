"""Which combinations of sync, exchange and compression work, and what to use instead of those that do not.

Each setting checks its own values; these rules are about the three together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sandtable.errors import MethodError
from sandtable.methods.data.compression.compression import Compression
from sandtable.methods.data.exchange.exchange import Exchange, VectorSpec
from sandtable.methods.data.exchange.hierarchical import Hierarchical
from sandtable.methods.data.sync.bulk import BulkSynchronous
from sandtable.methods.data.sync.local_sgd import LocalSGD
from sandtable.methods.data.sync.post_local import PostLocalSGD
from sandtable.methods.data.sync.sync import Sync
from sandtable.methods.server.in_process_server import server_ranks
from sandtable.methods.server.settings import ParameterServer
from sandtable.methods.server.sync import ServerSync, check_sync
from sandtable.methods.transport.vectors import Vector

__all__ = ["RULES", "Combination", "CombinationRule", "check_combination"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """The three choices, for a model on a number of ranks."""

    sync: Sync | ServerSync
    exchange: Exchange
    compression: Compression
    num_ranks: int
    has_sparse_gradients: bool = False

    def __str__(self) -> str:
        return f"{self.sync} with {self.exchange} and {self.compression}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationRule:
    """A rule, a test whether a combination breaks it, and the nearest legal choice."""

    text: str
    is_broken_by: Callable[[Combination], bool]
    remedy: str


def check_combination(
    sync: Sync | ServerSync,
    exchange: Exchange | ParameterServer,
    compression: Compression,
    *,
    num_ranks: int,
    has_sparse_gradients: bool = False,
) -> None:
    """Refuse a combination that cannot work, with the rule and the nearest one that does."""
    if isinstance(exchange, ParameterServer):
        _check_served(sync, exchange, compression, num_ranks=num_ranks)
        return
    for name, value, kinds in (
        ("sync", sync, (Sync, ServerSync)),
        ("exchange", exchange, (Exchange,)),
        ("compression", compression, (Compression,)),
    ):
        if not isinstance(value, kinds):
            raise MethodError(f"{name} must be a {kinds[0].__name__} such as {_EXAMPLES[name]}, but got {value!r}")
    exchange.check(num_ranks)
    combination = Combination(
        sync=sync,
        exchange=exchange,
        compression=compression,
        num_ranks=num_ranks,
        has_sparse_gradients=has_sparse_gradients,
    )
    for rule in RULES:
        if rule.is_broken_by(combination):
            raise MethodError(f"{rule.text}, but got {combination}; {rule.remedy}")
    if isinstance(sync, LocalSGD):
        exchange.check_weights(_sample_spec(compression))


def _sample_spec(compression: Compression) -> VectorSpec:
    """Return the spec of a few weights: enough to see whether an exchange of weights can carry them."""
    weights = Vector([torch.zeros(_SAMPLE_ELEMENTS)])
    return VectorSpec.of(weights, compression, seed=0)


def _check_served(
    sync: Sync | ServerSync, exchange: ParameterServer, compression: Compression, *, num_ranks: int
) -> None:
    """Refuse a combination that cannot work with a parameter server."""
    check_sync(sync)
    server_ranks(exchange, num_ranks)
    if not isinstance(compression, Compression):
        raise MethodError(
            f"compression must be a Compression such as {_EXAMPLES['compression']}, but got {compression!r}"
        )
    if hasattr(compression, "reducer"):
        raise MethodError(
            f"a compression must make self-contained messages to go to a server, but got {compression}; "
            "try TopK(0.01), or exchange=AllReduce()"
        )


def _needs_a_server(combination: Combination) -> bool:
    return not isinstance(combination.sync, Sync)


def _averages_factors_with_few(combination: Combination) -> bool:
    exchange = combination.exchange
    slow = exchange.outer if isinstance(exchange, Hierarchical) else exchange
    return hasattr(combination.compression, "reducer") and not slow.reaches_all


def _moves_alone(combination: Combination) -> bool:
    sync = combination.sync
    has_outer = isinstance(sync, LocalSGD) and sync.outer is not None and not sync.outer.needs_consensus
    return has_outer and not combination.exchange.reaches_all


def _switches_without_common_ground(combination: Combination) -> bool:
    is_lossy = not combination.compression.is_lossless
    return isinstance(combination.sync, PostLocalSGD) and not combination.exchange.reaches_all and is_lossy


def _gossips_sparse_gradients(combination: Combination) -> bool:
    sync = combination.sync
    sends_gradients = isinstance(sync, Sync) and sync.exchanges_gradients
    return combination.has_sparse_gradients and sends_gradients and not combination.exchange.reaches_all


def _corrects_momentum_of_weights(combination: Combination) -> bool:
    corrects = getattr(combination.compression, "momentum", None) is not None
    return corrects and not isinstance(combination.sync, BulkSynchronous)


def _corrects_momentum_of_some(combination: Combination) -> bool:
    corrects = getattr(combination.compression, "momentum", None) is not None
    return corrects and not combination.exchange.reaches_all


RULES = (
    CombinationRule(
        text="ranks that do not keep step must take weights from a server, since no other rank waits for them",
        is_broken_by=_needs_a_server,
        remedy="try exchange=ParameterServer(shards=1), or sync=LocalSGD(16)",
    ),
    CombinationRule(
        text="factors such as PowerSGD's must be averaged over all ranks, since all ranks share their basis",
        is_broken_by=_averages_factors_with_few,
        remedy="try exchange=AllReduce(), or a compression of single messages such as TopK(0.01)",
    ),
    CombinationRule(
        text="an outer optimizer over gossip must also pull replicas together, or they drift apart",
        is_broken_by=_moves_alone,
        remedy="try outer=Consensus() as NoLoCo does, or exchange=AllReduce()",
    ),
    CombinationRule(
        text="compressed gossip of weights must start from equal replicas, which bulk gossip does not leave",
        is_broken_by=_switches_without_common_ground,
        remedy="try exchange=AllReduce(), or LocalSGD from the first step",
    ),
    CombinationRule(
        text="momentum correction must see every gradient, which only BulkSynchronous sends",
        is_broken_by=_corrects_momentum_of_weights,
        remedy="try momentum=None, or sync=BulkSynchronous()",
    ),
    CombinationRule(
        text="momentum correction must act on the gradients of all ranks, since gossip mixes a rank's own without it",
        is_broken_by=_corrects_momentum_of_some,
        remedy="try exchange=AllReduce(), or momentum=None",
    ),
    CombinationRule(
        text="sparse gradients must go to all ranks",
        is_broken_by=_gossips_sparse_gradients,
        remedy="try exchange=AllReduce(), LocalSGD (it exchanges weights), or an embedding with sparse=False",
    ),
)

_SAMPLE_ELEMENTS = 4096
_EXAMPLES = {"sync": "LocalSGD(16)", "exchange": "AllReduce()", "compression": "NoCompression()"}
