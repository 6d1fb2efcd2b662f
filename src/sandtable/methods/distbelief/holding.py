"""`hold`: be the server of one shard until the coordinator has finished."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch._C._distributed_c10d import Store

from sandtable.errors import MethodError
from sandtable.methods.distbelief.holder import Holder
from sandtable.methods.distbelief.keeper import Keeper
from sandtable.methods.distbelief.settings import Sandblaster
from sandtable.methods.distbelief.vectors import Vectors
from sandtable.methods.server.coding import Decoder, limit_bytes
from sandtable.methods.server.directory import directory_for
from sandtable.methods.server.listening import FAREWELL_S, TICK_S, join_all, listening, terminated
from sandtable.methods.server.plan import Plan
from sandtable.methods.server.settings import Checkpoints
from sandtable.methods.server.shard import initial_weights

__all__ = ["HolderReport", "hold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderReport:
    """What one server did. Dropped gradients were of portions of which another copy had counted, or that were late."""

    shard: int
    num_operations: int
    num_counted: int
    num_dropped: int
    num_checkpoints: int
    was_stopped: bool


def hold(
    model: nn.Module,
    *,
    settings: Sandblaster,
    checkpoints: Checkpoints | None = None,
    after: Callable[[int, Sequence[Tensor]], None] | None = None,
    store: Store | None = None,
    shard: int | None = None,
) -> HolderReport:
    """Hold a shard of the weights of `model`, of gradients and of the history, until the coordinator has finished.

    With `checkpoints` everything is written after every `checkpoints.every`-th iteration; a server that dies may be
    started again, and all go back to the last iteration that every shard has. `after` is called, before the first
    iteration and after each, with its number and a copy of this shard's weights, a vector for each dtype. `shard` is
    known from the rank unless given.
    """
    number = settings.shard if shard is None else shard
    if not 0 <= number < settings.shards:
        raise MethodError(f"shard must be one of 0 to {settings.shards - 1}, but got {number}; number servers from 0")
    plan = Plan.make(model, num_shards=settings.shards)
    parts = plan.shards[number]
    keeper = None
    if checkpoints is not None:
        keeper = Keeper(checkpoints, shard=number, num_shards=settings.shards, digest=plan.digest)
    holder = Holder(
        Vectors(initial_weights(model, parts)),
        Decoder(parts, None),
        for_coordinator=settings.identity(number),
        for_replicas=settings.identity(number, plan.digest),
        keeper=keeper,
        after=after,
        timeout_s=settings.timeout_s,
    )
    with (
        terminated() as stop,
        listening(
            holder.attend,
            directory=directory_for(settings.places, store),
            place=number,
            name=f"the server of shard {number}",
            limit_bytes=limit_bytes(parts),
            timeout_s=settings.timeout_s,
            close=holder.close,
        ) as threads,
    ):
        _watch(holder, stop, shard=number, timeout_s=settings.timeout_s)
        if not stop.is_set():
            join_all(threads, FAREWELL_S)
    return HolderReport(
        shard=number,
        num_operations=holder.num_operations,
        num_counted=holder.intake.num_counted,
        num_dropped=holder.intake.num_dropped,
        num_checkpoints=holder.num_checkpoints,
        was_stopped=stop.is_set(),
    )


def _watch(holder: Holder, stop: threading.Event, *, shard: int, timeout_s: float) -> None:
    """Return when the coordinator has finished or `stop` is set. It may be away for `timeout_s`."""
    seen = time.monotonic()
    with holder.changed:
        while not holder.is_done and not stop.is_set():
            if holder.failure is not None:
                raise holder.failure
            now = time.monotonic()
            if holder.has_coordinator:
                seen = now
            elif now - seen > timeout_s:
                raise MethodError(
                    f"the server of shard {shard} must have a coordinator, but was without for {timeout_s:g} s; "
                    "start all again: with checkpoints they go on from the last one"
                )
            holder.changed.wait(TICK_S)
