"""The driver of `DataParallel` for a parameter server: its steps are pushes and pulls; servers have the optimizer."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from sandtable.methods.compression import Compression
from sandtable.methods.exchange import Cost
from sandtable.methods.lane import Lane
from sandtable.methods.server.client import ServerClient
from sandtable.methods.server.hosting import Host, announce, hosting_ranks
from sandtable.methods.server.settings import ParameterServer
from sandtable.methods.sync import Driver, Sync
from sandtable.methods.wire import Wire

__all__ = ["ServerDriver"]


class ServerDriver(Driver):
    """A worker of a parameter server and, on some ranks, the server of a shard beside it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sync: Sync,
        exchange: ParameterServer,
        compression: Compression,
        wire: Wire,
        lane: Lane,
        seed: int,
    ) -> None:
        self._optimizer, self._wire, self._lane = optimizer, wire, lane
        self._host: Host | None = None
        if exchange.addresses is None:
            ranks = hosting_ranks(exchange, wire.size)
            if wire.rank in ranks:
                self._host = Host(
                    model,
                    optimizer,
                    exchange=exchange,
                    sync=sync,
                    compression=compression,
                    shard=ranks.index(wire.rank),
                    workers=wire.size,
                )
            exchange = announce(exchange, self._host, wire)
        self._compression = compression
        self._num_elements = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        self._client = ServerClient(
            model, optimizer, sync=sync, exchange=exchange, compression=compression, worker=wire.rank, seed=seed
        )
        self._counted = self._client.counters

    def step(self) -> None:
        self._lane.run(self._client.step)
        self._count()
        # What a scheduler looks for, to warn of a loop that never steps: here the servers do.
        self._optimizer._opt_called = True  # type: ignore[attr-defined]

    @property
    def replicas_are_equal(self) -> bool:
        return False

    def fetch_common(self) -> bool:
        self._client.synchronize()
        self._count()
        return True

    def cost(self) -> Cost:
        """Servers' links carry what all workers send and receive; the busiest has its shard's part of that."""
        cost = self._client.cost
        shards = cost.num_messages // 2
        return Cost(
            rounds=2,
            messages=shards,
            sent_bytes=cost.sent_bytes,
            coded_elements=0.0 if self._compression.is_lossless else self._num_elements,
            busiest_bytes=self._wire.size * max(cost.sent_bytes, cost.received_bytes) / shards,
        )

    def close(self) -> None:
        """Tell the servers that this worker has finished, and serve until all have."""
        self._client.done()
        if self._host is not None:
            self._host.join()

    def state_dict(self) -> dict[str, Any]:
        shard = None if self._host is None else self._host.server.state_dict()
        return {"client": self._client.state_dict(), "shard": shard}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """All ranks call it: nobody takes weights before every shard has its own."""
        self._client.load_state_dict(state["client"])
        if self._host is not None:
            self._host.server.load_state_dict(state["shard"])
        self._client.synchronize()
        self._counted = self._client.counters

    def _count(self) -> None:
        """Add what has been exchanged since the last time to the wire's counters."""
        before, now = self._counted, self._client.counters
        self._counted = now
        self._wire.counters.add(
            sent_bytes=now.sent_bytes - before.sent_bytes,
            received_bytes=now.received_bytes - before.received_bytes,
            messages=(now.num_messages - before.num_messages) // 2,
        )
        self._wire.counters.add_served(
            communication_s=now.communication_s - before.communication_s, waiting_s=now.waiting_s - before.waiting_s
        )
