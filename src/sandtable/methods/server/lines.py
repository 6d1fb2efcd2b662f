"""Lines: the links to all shards, asked at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

from sandtable.methods.server.link import Link, Traffic

__all__ = ["Answer", "Lines"]

Answer = dict[str, Any]


class Lines:
    """A thread for each link, so that all servers work at the same time."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = links
        self._threads = ThreadPoolExecutor(len(links), thread_name_prefix="shard")

    def ask(self, request: Callable[[int, Link], Answer]) -> list[Answer]:
        """All answers, in the shards' order. If a link fails, all are closed: nobody can go on without a shard."""
        futures = [self._threads.submit(request, shard, link) for shard, link in enumerate(self.links)]
        ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in ended:
            error = future.exception()
            if error is not None:
                self.close()
                raise error
        return [future.result() for future in futures]

    @property
    def traffic(self) -> Traffic:
        each = [link.traffic for link in self.links]
        return Traffic(
            num_messages=sum(one.num_messages for one in each),
            sent_bytes=sum(one.sent_bytes for one in each),
            received_bytes=sum(one.received_bytes for one in each),
            num_connections=sum(one.num_connections for one in each),
        )

    def close(self) -> None:
        for link in self.links:
            link.close()
        self._threads.shutdown(wait=False)
