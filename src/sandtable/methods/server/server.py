"""`serve`: serve one shard until the workers are done."""

import copy
import importlib
import threading
import time
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch._C._distributed_c10d import Store

from sandtable.errors import MethodError
from sandtable.methods.server.addresses import AddressRegistry, address_registry
from sandtable.methods.server.checkpoint import checkpoint_path, read_checkpoint
from sandtable.methods.server.codecs import CodecSettings, Decoder, limit_bytes, lossy
from sandtable.methods.server.consistency import consistency_for
from sandtable.methods.server.listener import DRAIN_S, POLL_S, join_all, listen, termination_event
from sandtable.methods.server.members import Members, MemberState
from sandtable.methods.server.message import Identity
from sandtable.methods.server.roles import Role
from sandtable.methods.server.service import ServerTally, Service
from sandtable.methods.server.settings import Checkpoints, ParameterServer
from sandtable.methods.server.shard import OptimizerFactory, Shard
from sandtable.methods.server.shard_plan import ShardPlan
from sandtable.methods.server.sync import ServerSync, check_sync

__all__ = ["Server", "ServerReport", "serve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """What one server did. `updates` is the version of its weights, `first_version` the one it began with.

    A *lead* is how many steps a worker was ahead of the slowest when it got weights; a *delay* is how many updates were
    made between the worker's pull and the use of its gradient.
    """

    shard: int
    first_version: int
    updates: int
    done: tuple[int, ...]
    lost: tuple[int, ...]
    was_stopped: bool
    num_messages: int
    sent_bytes: int
    received_bytes: int
    num_late: int
    num_refused: int
    num_checkpoints: int
    checkpoint_s: float
    largest_lead: int
    largest_delay: int
    mean_delay: float


def serve(
    model: nn.Module,
    optimizer: OptimizerFactory,
    *,
    exchange: ParameterServer,
    sync: ServerSync,
    compression: CodecSettings | None = None,
    checkpoints: Checkpoints | None = None,
    store: Store | None = None,
    role: Role | None = None,
) -> ServerReport:
    """Serve a shard of `model` and update it with what workers push, until all of them are done or lost.

    `optimizer` makes the server's optimizer, as `lambda named: torch.optim.Adam(named, lr=1e-3)`. `sync`, `compression`
    and `exchange` must equal the workers'. With `checkpoints`, a server that is started again resumes from its last
    one; at most `checkpoints.every - 1` acknowledged updates are lost. `role` (which shard this is, and how many
    workers to expect at the start) is known from torchrun unless given. SIGTERM ends it after a last checkpoint.
    """
    role = exchange.role if role is None else role
    if role.shard is None or not 0 <= role.shard < exchange.shards:
        raise MethodError(
            f"shard must be one of 0 to {exchange.shards - 1}, but got {role.shard}; call serve on servers only"
        )
    server = Server(
        model,
        optimizer,
        exchange=exchange,
        sync=sync,
        compression=compression,
        shard=role.shard,
        workers=role.num_workers,
    )
    if checkpoints is not None:
        server.keep(checkpoints)
    return server.run(address_registry(exchange, store))


class Server:
    """The server of one shard. While `run` serves, other threads may copy or replace its state."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: OptimizerFactory,
        *,
        exchange: ParameterServer,
        sync: ServerSync,
        compression: CodecSettings | None,
        shard: int,
        workers: int,
    ) -> None:
        # Optimizers import this at their first step, which takes seconds, while the first worker would wait.
        importlib.import_module("torch._dynamo")
        compression = lossy(compression)
        plan = ShardPlan.make(model, num_shards=exchange.shards, cut=exchange.cut)
        self._exchange, self._number, self._digest = exchange, shard, plan.digest
        self._shard, self._members = Shard(model, plan.shards[shard], optimizer), Members(range(workers))
        self._consistency = consistency_for(check_sync(sync), self._shard, self._members)
        self._service = Service(
            self._shard,
            self._members,
            self._consistency,
            Decoder(self._shard.parts, compression),
            identity=Identity(shard=shard, digest=plan.digest, sync=repr(sync), compression=repr(compression)),
            timeout_s=exchange.timeout_s,
        )

    def keep(self, checkpoints: Checkpoints) -> None:
        """Resume from the last checkpoint, if there is one, and write more."""
        path = checkpoint_path(checkpoints.directory, shard=self._number, num_shards=self._exchange.shards)
        state = read_checkpoint(path, digest=self._digest)
        if state is not None:
            self._shard.load_state_dict(state)
            self._members.expect_again(state["members"])
            self._consistency.resume(state["clock"])
        self._service.keep(path, every=checkpoints.every)

    def run(self, registry: AddressRegistry) -> ServerReport:
        """Serve until all workers are done or lost."""
        first_version, timeout_s = self._shard.version, self._exchange.timeout_s
        with termination_event() as stop:
            with listen(
                self._service.serve_connection,
                registry=registry,
                endpoint=self._number,
                name=f"the server of shard {self._number}",
                limit_bytes=limit_bytes(self._shard.parts),
                timeout_s=timeout_s,
                close=self._service.close,
            ) as threads:
                try:
                    _watch(self._service, self._members, stop, timeout_s=timeout_s, shard=self._number)
                finally:
                    # The last answers, or the reason of a failure, are in flight; workers then disconnect.
                    if not stop.is_set():
                        join_all(threads, DRAIN_S)
            with self._service.changed:
                self._service.save()
        return _report(
            self._service.tally,
            self._members,
            self._shard,
            shard=self._number,
            first_version=first_version,
            was_stopped=stop.is_set(),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the weights and of the optimizer's state."""
        with self._service.changed:
            return copy.deepcopy(self._shard.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the weights and the optimizer's state."""
        with self._service.changed:
            self._shard.load_state_dict(copy.deepcopy(state))


def _report(
    tally: ServerTally, members: Members, held: Shard, *, shard: int, first_version: int, was_stopped: bool
) -> ServerReport:
    return ServerReport(
        shard=shard,
        first_version=first_version,
        updates=held.version,
        done=members.numbers(MemberState.DONE),
        lost=members.numbers(MemberState.LOST),
        was_stopped=was_stopped,
        num_messages=tally.num_messages,
        sent_bytes=tally.sent_bytes,
        received_bytes=tally.received_bytes,
        num_late=tally.num_late,
        num_refused=tally.num_refused,
        num_checkpoints=tally.num_checkpoints,
        checkpoint_s=tally.checkpoint_s,
        largest_lead=tally.largest_lead,
        largest_delay=tally.largest_delay,
        mean_delay=tally.total_delay / max(1, tally.num_pushes),
    )


def _watch(service: Service, members: Members, stop: threading.Event, *, timeout_s: float, shard: int) -> None:
    """Return when all workers are done or lost, or `stop` is set. Workers are expected for `timeout_s`."""
    begin = alone_since = time.monotonic()
    with service.changed:
        while not stop.is_set():
            if service.failure is not None:
                raise service.failure
            now = time.monotonic()
            service.tick(expect=now - begin < timeout_s)
            if members.waited_for:
                alone_since = now
            elif members.numbers(MemberState.DONE):
                return
            elif now - alone_since > timeout_s:
                lost = ", ".join(str(worker) for worker in members.numbers(MemberState.LOST)) or "none ever joined"
                raise MethodError(
                    f"the server of shard {shard} must have workers, but had none for {timeout_s:g} s and none had "
                    f"finished (lost: {lost}); start workers again, then this server from its checkpoint"
                )
            service.changed.wait(POLL_S)
