"""Wire: every byte between ranks goes through here, and is counted.

It is a thin layer over one process group of torch.distributed (gloo or NCCL): sums, broadcasts, exchanges with named
partners, messages of unequal length. Ranks are those of the group. Counted are payload bytes: of messages exactly, of
torch's own all-reduce as its ring sends them, 2(N-1)/N of the buffer in 2(N-1) messages.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.counters import Counters

__all__ = ["Wire"]

# A message of unequal length carries its own length in front, so that one message is enough.
_HEADER_BYTES = 8


class Wire:
    """One process group, counted. `rank` and `size` are this rank's place in it."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise MethodError(
                "ranks must be joined before they train together, but there is no process group; "
                'call torch.distributed.init_process_group("gloo") first, under torchrun'
            )
        self.group: dist.ProcessGroup = dist.group.WORLD if group is None else group  # type: ignore[assignment]
        self.rank = dist.get_rank(self.group)
        if self.rank < 0:
            raise MethodError(
                f"a rank must be in the group it trains with, but rank {dist.get_rank()} of all is not in this one; "
                "let only the members of a group make the object"
            )
        self.size = dist.get_world_size(self.group)
        self.counters = Counters()
        self.branches: list[Wire] = []
        self._divisions: dict[int, tuple[Wire, Wire | None]] = {}
        self._last_end = 0.0
        self._is_gloo = "gloo" in str(dist.get_backend_config(self.group))

    def private(self) -> "Wire":
        """The same ranks as a group of their own: for a thread that must not get between the script's own."""
        ranks = dist.get_process_group_ranks(self.group)
        return Wire(dist.new_group(ranks, use_local_synchronization=True))

    def divide(self, num_nodes: int) -> "tuple[Wire, Wire | None]":
        """Wires inside this rank's node, and between the first ranks of all nodes (None for the others).

        Ranks are dealt to nodes in order: the first `size // num_nodes` make the first node.
        """
        if num_nodes not in self._divisions:
            ranks = dist.get_process_group_ranks(self.group)
            width = self.size // num_nodes
            node, place = divmod(self.rank, width)
            inner = self._branch(ranks[node * width : (node + 1) * width])
            # Every rank joins a group of those in the same place of their nodes, though only the first ones use it:
            # torch names groups by how many a rank has, so all must have the same number.
            between = self._branch(ranks[place::width])
            self._divisions[num_nodes] = (inner, between if place == 0 else None)
        return self._divisions[num_nodes]

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum over all ranks, in place, by torch's own algorithm."""
        self.begin_all_reduce(tensor)()

    def begin_all_reduce(self, tensor: Tensor) -> Callable[[], None]:
        """The same, under way when this returns; what it returns waits for the end.

        Of several under way at the same time, each counts the time from the end of the one before.
        """
        if self.size == 1:
            return _nothing
        start = time.perf_counter()
        work = dist.all_reduce(tensor, group=self.group, async_op=True)

        def finish() -> None:
            self._see_through(work)
            self._clock(tensor, max(start, self._last_end))
            carried = 2 * (self.size - 1) * tensor.nbytes // self.size
            self.counters.add(sent_bytes=carried, received_bytes=carried, messages=2 * (self.size - 1))

        return finish

    def broadcast(self, tensor: Tensor, *, source: int = 0) -> None:
        """What `source` has, everywhere; counted as a pipeline: every rank but the last passes it on once."""
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
        """Send a tensor to each of some ranks and fill a tensor from each of some ranks."""
        first = next(iter([*outgoing.values(), *incoming.values()]), None)
        if first is None:
            self.counters.durations_s.append(math.inf)
            return
        with self._timed(first):
            # A group may have gloo for the processor and NCCL for GPUs; NCCL would wait for ever for single messages.
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
        """Send bytes to some ranks and receive bytes, of whatever length up to `capacity_bytes`, from some ranks."""
        longest = max((len(message) for message in outgoing.values()), default=0)
        assert longest <= capacity_bytes, f"a message of {longest} bytes, longer than the {capacity_bytes} agreed"
        device = next((message.device for message in outgoing.values()), torch.device("cpu"))
        if self._is_gloo and device.type == "cpu":
            return self._exchange_framed(outgoing, sources, capacity_bytes)
        return self._exchange_sizes_first(outgoing, sources, device)

    def gather_messages(self, message: Tensor, *, capacity_bytes: int) -> list[Tensor]:
        """The messages of all ranks, in their order; this rank's own is not sent to itself."""
        others = [peer for peer in range(self.size) if peer != self.rank]
        received = self.exchange_messages(dict.fromkeys(others, message), others, capacity_bytes=capacity_bytes)
        return [message if peer == self.rank else received[peer] for peer in range(self.size)]

    def _branch(self, members: list[int]) -> "Wire":
        self.branches.append(Wire(dist.new_group(members, use_local_synchronization=True)))
        return self.branches[-1]

    def _exchange_framed(
        self, outgoing: Mapping[int, Tensor], sources: Sequence[int], capacity_bytes: int
    ) -> dict[int, Tensor]:
        """One message each: length, then bytes. gloo lets a message be shorter than the buffer it arrives in."""
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
        """Two messages each: NCCL wants both sides to agree on the length."""
        sizes_out = {peer: torch.tensor([len(message)], device=device) for peer, message in outgoing.items()}
        sizes_in = {peer: torch.empty(1, dtype=torch.int64, device=device) for peer in sources}
        self.exchange(sizes_out, sizes_in)
        incoming = {peer: torch.empty(int(size), dtype=torch.uint8, device=device) for peer, size in sizes_in.items()}
        self.exchange(outgoing, incoming)
        return incoming

    def _one_by_one(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        """Every rank sends to the next after it first, then to the one after that.

        All at once, several messages would crowd towards one rank while another gets none: over slow links that takes
        up to half as long again. A message counts as sent when the kernel has it, so that latency is paid once.
        """
        arrivals = [dist.irecv(tensor, group=self.group, group_src=peer) for peer, tensor in incoming.items()]
        for peer in sorted(outgoing, key=lambda peer: (peer - self.rank) % self.size):
            self._see_through(dist.isend(outgoing[peer], group=self.group, group_dst=peer))
        for arrival in arrivals:
            self._see_through(arrival)

    def _at_once(self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor]) -> None:
        """As one operation, whose order NCCL sees to."""
        operations = [self._operation(dist.isend, tensor, peer) for peer, tensor in outgoing.items()]
        operations += [self._operation(dist.irecv, tensor, peer) for peer, tensor in incoming.items()]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    @staticmethod
    def _see_through(work: dist.Work | None) -> None:
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
    """To a rank that is alone."""
