"""The wire: every byte between ranks goes through here and is counted.

It is a thin layer over one process group of torch.distributed (gloo or NCCL): sums, broadcasts, exchanges with named
partners, messages of unequal length. Ranks are those of the group. It counts payload bytes: exactly for messages, and
for torch's own all-reduce as its ring sends them, 2(N-1)/N of the buffer in 2(N-1) messages.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.transport.counters import Counters

__all__ = ["Wire"]

# A message of unequal length carries its own length in front, so that one message is enough.
_HEADER_BYTES = 8


class Wire:
    """One process group, counted. `rank` and `size` are this rank's place in it."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise MethodError(
                "ranks must be in a process group before they train together, but there is none; "
                'call torch.distributed.init_process_group("gloo") first, under torchrun'
            )
        self.group: dist.ProcessGroup = dist.group.WORLD if group is None else group  # type: ignore[assignment]
        self.rank = dist.get_rank(self.group)
        if self.rank < 0:
            raise MethodError(
                f"a rank must be in the group it trains with, but global rank {dist.get_rank()} is not; "
                "make the object only on the members of the group"
            )
        self.size = dist.get_world_size(self.group)
        self.counters = Counters()
        self.branches: list[Wire] = []
        self._divisions: dict[int, tuple[Wire, Wire | None]] = {}
        self._last_end = 0.0
        self._is_gloo = "gloo" in str(dist.get_backend_config(self.group))

    def private(self) -> "Wire":
        """Return a wire with the same ranks and its own group, so that a thread does not interfere with the script."""
        ranks = dist.get_process_group_ranks(self.group)
        return Wire(dist.new_group(ranks, use_local_synchronization=True))

    def divide(self, num_nodes: int) -> "tuple[Wire, Wire | None]":
        """Return a wire inside this rank's node, and one between the first ranks of all nodes (None for the others).

        The first `size // num_nodes` ranks make the first node, and so on.
        """
        if num_nodes not in self._divisions:
            ranks = dist.get_process_group_ranks(self.group)
            width = self.size // num_nodes
            node, place = divmod(self.rank, width)
            inner = self._branch(ranks[node * width : (node + 1) * width])
            # Every rank joins a group with its counterparts on other nodes, though only the first ranks use it:
            # torch names groups by how many a rank has, so all ranks must have the same number.
            between = self._branch(ranks[place::width])
            self._divisions[num_nodes] = (inner, between if place == 0 else None)
        return self._divisions[num_nodes]

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum over all ranks, in place, with torch's own algorithm."""
        self.begin_all_reduce(tensor)()

    def begin_all_reduce(self, tensor: Tensor) -> Callable[[], None]:
        """Start an `all_reduce` and return a function that waits for its end.

        Of several in flight at the same time, each counts the time from the end of the previous one.
        """
        if self.size == 1:
            return _nothing
        start = time.perf_counter()
        work = dist.all_reduce(tensor, group=self.group, async_op=True)

        def finish() -> None:
            self._wait_for(work)
            self._clock(tensor, max(start, self._last_end))
            carried = 2 * (self.size - 1) * tensor.nbytes // self.size
            self.counters.add(sent_bytes=carried, received_bytes=carried, messages=2 * (self.size - 1))

        return finish

    def broadcast(self, tensor: Tensor, *, source: int = 0) -> None:
        """Copy the tensor of `source` to all ranks; counted as a pipeline in which all but the last pass it on once."""
        if self.size == 1:
            return
        with self._timed(tensor):
            dist.broadcast(tensor, group=self.group, group_src=source)
        passes_on = (self.rank - source) % self.size < self.size - 1
        self.counters.add(
            sent_bytes=tensor.nbytes * passes_on,
            received_bytes=tensor.nbytes * (self.rank != source),
            messages=int(passes_on),
        )

    def exchange(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        """Send a tensor to each rank in `outgoing` and fill a tensor from each rank in `incoming`."""
        first = next(iter([*outgoing.values(), *incoming.values()]), None)
        if first is None:
            self.counters.durations_s.append(math.inf)
            return
        with self._timed(first):
            # A group may have gloo for the CPU and NCCL for GPUs; NCCL would wait forever for single messages.
            if self._is_gloo and first.device.type == "cpu":
                self._one_by_one(outgoing, incoming)
            else:
                self._at_once(outgoing, incoming)
        self.counters.add(
            sent_bytes=sum(tensor.nbytes for tensor in outgoing.values()),
            received_bytes=sum(tensor.nbytes for tensor in incoming.values()),
            messages=len(outgoing),
        )

    def exchange_messages(
        self, outgoing: Mapping[int, Tensor], sources: Sequence[int], *, capacity_bytes: int
    ) -> dict[int, Tensor]:
        """Send bytes to some ranks and receive bytes of any length up to `capacity_bytes` from `sources`."""
        longest = max((len(message) for message in outgoing.values()), default=0)
        assert longest <= capacity_bytes, f"a message has {longest} bytes, more than the agreed {capacity_bytes}"
        device = next((message.device for message in outgoing.values()), torch.device("cpu"))
        if self._is_gloo and device.type == "cpu":
            return self._exchange_framed(outgoing, sources, capacity_bytes)
        return self._exchange_sizes_first(outgoing, sources, device)

    def gather_messages(self, message: Tensor, *, capacity_bytes: int) -> list[Tensor]:
        """Return the messages of all ranks, in rank order; a rank does not send its own to itself."""
        others = [peer for peer in range(self.size) if peer != self.rank]
        received = self.exchange_messages(dict.fromkeys(others, message), others, capacity_bytes=capacity_bytes)
        return [message if peer == self.rank else received[peer] for peer in range(self.size)]

    def _branch(self, members: list[int]) -> "Wire":
        self.branches.append(Wire(dist.new_group(members, use_local_synchronization=True)))
        return self.branches[-1]

    def _exchange_framed(
        self, outgoing: Mapping[int, Tensor], sources: Sequence[int], capacity_bytes: int
    ) -> dict[int, Tensor]:
        """Send one message per peer: length, then bytes. With gloo a message may be shorter than its receive buffer."""
        framed: dict[int, Tensor] = {}
        done: dict[int, Tensor] = {}
        for peer, message in outgoing.items():
            if id(message) not in done:
                header = torch.tensor([len(message)], dtype=torch.int64).view(torch.uint8)
                done[id(message)] = torch.cat([header, message])
            framed[peer] = done[id(message)]
        incoming = {peer: torch.empty(_HEADER_BYTES + capacity_bytes, dtype=torch.uint8) for peer in sources}
        before = self.counters.received_bytes
        self.exchange(framed, incoming)
        self.counters.received_bytes = before
        received: dict[int, Tensor] = {}
        for peer, buffer in incoming.items():
            length = int(buffer[:_HEADER_BYTES].view(torch.int64))
            received[peer] = buffer[_HEADER_BYTES : _HEADER_BYTES + length]
            self.counters.received_bytes += _HEADER_BYTES + length
        return received

    def _exchange_sizes_first(
        self, outgoing: Mapping[int, Tensor], sources: Sequence[int], device: torch.device
    ) -> dict[int, Tensor]:
        """Send two messages per peer: with NCCL both sides must agree on the length."""
        sizes_out = {peer: torch.tensor([len(message)], device=device) for peer, message in outgoing.items()}
        sizes_in = {peer: torch.empty(1, dtype=torch.int64, device=device) for peer in sources}
        self.exchange(sizes_out, sizes_in)
        incoming = {peer: torch.empty(int(size), dtype=torch.uint8, device=device) for peer, size in sizes_in.items()}
        self.exchange(outgoing, incoming)
        return incoming

    def _one_by_one(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        """Send to the next rank first, then to the one after it, and so on.

        Sent all at once, several messages would crowd towards one rank while another gets none, which takes up to 50 %
        longer over slow links. A message counts as sent when the kernel has it, so latency is paid once.
        """
        arrivals = [dist.irecv(tensor, group=self.group, group_src=peer) for peer, tensor in incoming.items()]
        for peer in sorted(outgoing, key=lambda peer: (peer - self.rank) % self.size):
            self._wait_for(dist.isend(outgoing[peer], group=self.group, group_dst=peer))
        for arrival in arrivals:
            self._wait_for(arrival)

    def _at_once(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        """Send and receive in one batch, which NCCL orders."""
        operations = [self._operation(dist.isend, tensor, peer) for peer, tensor in outgoing.items()]
        operations += [self._operation(dist.irecv, tensor, peer) for peer, tensor in incoming.items()]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    @staticmethod
    def _wait_for(work: dist.Work | None) -> None:
        assert work is not None, "this rank is not in the group of its wire"
        work.wait()

    def _operation(self, function: object, tensor: Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(function, tensor, group=self.group, group_peer=peer)  # type: ignore[arg-type]

    @contextmanager
    def _timed(self, tensor: Tensor) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._clock(tensor, start)

    def _clock(self, tensor: Tensor, start: float) -> None:
        if tensor.is_cuda:
            torch.cuda.current_stream(tensor.device).synchronize()
        self._last_end = time.perf_counter()
        self.counters.durations_s.append(self._last_end - start)


def _nothing() -> None:
    """Wait for nothing: this rank is alone."""
