"""The connections to all shards, used at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

from sandtable.methods.server.connection import ConnectionTraffic, ServerConnection

__all__ = ["Answer", "ConnectionPool"]

Answer = dict[str, Any]


class ConnectionPool:
    """One thread per connection, so that all servers work at the same time."""

    def __init__(self, connections: Sequence[ServerConnection]) -> None:
        self.connections = connections
        self._threads = ThreadPoolExecutor(len(connections), thread_name_prefix="shard")

    def request_all(self, request: Callable[[int, ServerConnection], Answer]) -> list[Answer]:
        """Return all answers, in the shards' order. If a connection fails, close all: nothing works without a shard."""
        futures = [
            self._threads.submit(request, shard, connection) for shard, connection in enumerate(self.connections)
        ]
        ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in ended:
            error = future.exception()
            if error is not None:
                self.close()
                raise error
        return [future.result() for future in futures]

    @property
    def traffic(self) -> ConnectionTraffic:
        traffics = [connection.traffic for connection in self.connections]
        return ConnectionTraffic(
            num_messages=sum(traffic.num_messages for traffic in traffics),
            sent_bytes=sum(traffic.sent_bytes for traffic in traffics),
            received_bytes=sum(traffic.received_bytes for traffic in traffics),
            num_connections=sum(traffic.num_connections for traffic in traffics),
        )

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self._threads.shutdown(wait=False)
