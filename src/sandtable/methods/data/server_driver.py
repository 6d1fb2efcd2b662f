"""The driver of `DataParallel` for a parameter server: its steps are pushes and pulls; servers run the optimizer."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from sandtable.methods.data.communication_queue import CommunicationQueue
from sandtable.methods.data.compression.compression import Compression
from sandtable.methods.data.exchange.exchange import ExchangeCost
from sandtable.methods.data.sync.sync import SyncDriver
from sandtable.methods.server.client import ServerClient
from sandtable.methods.server.in_process_server import InProcessServer, server_ranks, share_addresses
from sandtable.methods.server.settings import ParameterServer
from sandtable.methods.server.sync import ServerSync
from sandtable.methods.transport.wire import Wire

__all__ = ["ServerDriver"]


class ServerDriver(SyncDriver):
    """A worker of a parameter server and, on some ranks, the server of a shard beside it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sync: ServerSync,
        exchange: ParameterServer,
        compression: Compression,
        wire: Wire,
        queue: CommunicationQueue,
        seed: int,
    ) -> None:
        self._optimizer, self._wire, self._queue = optimizer, wire, queue
        self._server: InProcessServer | None = None
        if exchange.addresses is None:
            ranks = server_ranks(exchange, wire.size)
            if wire.rank in ranks:
                self._server = InProcessServer(
                    model,
                    optimizer,
                    exchange=exchange,
                    sync=sync,
                    compression=compression,
                    shard=ranks.index(wire.rank),
                    workers=wire.size,
                )
            exchange = share_addresses(exchange, self._server, wire.group)
        self._compression = compression
        self._num_elements = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        self._client = ServerClient(
            model, optimizer, sync=sync, exchange=exchange, compression=compression, worker=wire.rank, seed=seed
        )
        self._counted = self._client.counters

    def step(self) -> None:
        self._queue.run(self._client.step)
        self._count()
        # Schedulers check this and warn of a loop that never steps: here the servers step.
        self._optimizer._opt_called = True  # type: ignore[attr-defined]

    @property
    def replicas_are_equal(self) -> bool:
        return False

    def fetch_common(self) -> bool:
        self._client.synchronize()
        self._count()
        return True

    def cost(self) -> ExchangeCost:
        """Compute the cost: the busiest server's link carries its shard's part of what all workers send and receive."""
        cost = self._client.cost
        shards = cost.num_messages // 2
        return ExchangeCost(
            rounds=2,
            messages=shards,
            sent_bytes=cost.sent_bytes,
            coded_elements=0.0 if self._compression.is_lossless else self._num_elements,
            busiest_bytes=self._wire.size * max(cost.sent_bytes, cost.received_bytes) / shards,
        )

    def close(self) -> None:
        """Report to the servers that this worker has finished, and serve until all have."""
        self._client.done()
        if self._server is not None:
            self._server.join()

    def state_dict(self) -> dict[str, Any]:
        shard = None if self._server is None else self._server.server.state_dict()
        return {"client": self._client.state_dict(), "shard": shard}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state; all ranks call it, and none takes weights before every shard has loaded."""
        self._client.load_state_dict(state["client"])
        if self._server is not None:
            self._server.server.load_state_dict(state["shard"])
        self._client.synchronize()
        self._counted = self._client.counters

    def _count(self) -> None:
        """Add what was exchanged since the last call to the wire's counters."""
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
