"""Messages between stages: tensors of any shape, one way, in order.

    header  [kind, number, form, length]    four numbers
    forms                                   only the first time these shapes go to this peer
    tensors                                 one after the other

Sending never blocks: a thread keeps the tensors until they have arrived. Receiving happens in a thread, which knows
beforehand what to expect from which rank, so that a message travels while the stage computes. Each direction has its
own process group, so that all messages between two ranks of a group go one way, in the same order on both.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sandtable.methods.pipeline.forms import Form, decode, encode, forms_of
from sandtable.methods.pipeline.task_thread import TaskThread
from sandtable.methods.pipeline.watch import Watch

__all__ = ["Inbox", "Outbox", "PipelineTraffic", "StageMessage"]

_HEADER_NUMBERS = 4


class StageMessageKind(IntEnum):
    """What follows a header."""

    TENSORS = 0
    FORMS_ONLY = 1
    END = 2


@dataclass(frozen=True, slots=True)
class StageMessage:
    """`tensors` are aligned with `forms`. Nothing is sent for a form that is None; an announcement has no tensors."""

    number: int
    forms: tuple[Form | None, ...]
    tensors: tuple[Tensor | None, ...] = ()
    is_end: bool = False


@dataclass(slots=True, kw_only=True)
class PipelineTraffic:
    """What this rank has sent: payload bytes by purpose, and messages.

    `weight_bytes` are gradients averaged among replicas, and ties.
    """

    activation_bytes: int = 0
    gradient_bytes: int = 0
    weight_bytes: int = 0
    control_bytes: int = 0
    """Headers and shapes."""
    messages: int = 0

    def reset(self) -> None:
        self.activation_bytes = self.gradient_bytes = self.weight_bytes = self.control_bytes = self.messages = 0

    @property
    def sent_bytes(self) -> int:
        return self.activation_bytes + self.gradient_bytes + self.weight_bytes + self.control_bytes


class Outbox:
    """Sends in one direction. `carries` names the field of the traffic that counts the tensors' bytes."""

    def __init__(
        self, group: dist.ProcessGroup, *, device: torch.device, watch: Watch, traffic: PipelineTraffic, carries: str
    ) -> None:
        self._group = group
        self._device = device
        self._watch = watch
        self._traffic = traffic
        self._carries = carries
        self._thread = TaskThread(device)
        self._known: dict[tuple[int, tuple[Form | None, ...]], int] = {}
        self._in_flight: list[tuple[int, Future[None]]] = []

    def send(self, peer: int, number: int, tensors: Sequence[Tensor | None]) -> None:
        """Send tensors to a rank of the group; they must not be written to afterwards."""
        forms = forms_of(tensors)
        # The form describes a tensor without elements completely.
        payload = [tensor.detach().contiguous() for tensor in tensors if tensor is not None and tensor.numel()]
        carried = sum(tensor.nbytes for tensor in payload)
        setattr(self._traffic, self._carries, getattr(self._traffic, self._carries) + carried)
        self._traffic.messages += len(payload)
        self._post(peer, [*self._header(StageMessageKind.TENSORS, peer, number, forms), *payload])

    def announce(self, peer: int, number: int, forms: Sequence[Form | None]) -> None:
        """Send a number and forms, without tensors."""
        self._post(peer, self._header(StageMessageKind.FORMS_ONLY, peer, number, tuple(forms)))

    def end(self, peer: int) -> None:
        """Send that nothing follows, though something may be expected."""
        self._post(peer, self._header(StageMessageKind.END, peer, 0, ()))

    def flush(self) -> None:
        """Wait until everything sent has arrived."""
        for peer, future in self._in_flight:
            self._watch.wait(future, suspects=[peer], what="it to take what was sent")
        self._in_flight.clear()

    def close(self) -> None:
        self._thread.close()

    def _header(self, kind: StageMessageKind, peer: int, number: int, forms: tuple[Form | None, ...]) -> list[Tensor]:
        known = self._known.get((peer, forms))
        numbers = [] if known is not None else encode(forms)
        if known is None:
            known = sum(1 for other, _ in self._known if other == peer)
            self._known[peer, forms] = known
        header = [torch.tensor([kind, number, known, len(numbers)], dtype=torch.int64, device=self._device)]
        if numbers:
            header.append(torch.tensor(numbers, dtype=torch.int64, device=self._device))
        self._traffic.control_bytes += sum(part.nbytes for part in header)
        self._traffic.messages += len(header)
        return header

    def _post(self, peer: int, tensors: list[Tensor]) -> None:
        self._forget_arrived()
        works: list[Any] = [dist.isend(tensor, group=self._group, group_dst=peer) for tensor in tensors]
        self._in_flight.append((peer, self._thread.submit(partial(_wait_for_all, works, tensors))))

    def _forget_arrived(self) -> None:
        """Forget what has arrived; raise the error of what could not be sent."""
        while self._in_flight and self._in_flight[0][1].done():
            peer, future = self._in_flight.pop(0)
            if future.exception() is not None:
                self._watch.wait(future, suspects=[peer], what="it to take what was sent")


class Inbox:
    """Receives the expected messages of one direction, in order."""

    def __init__(self, group: dist.ProcessGroup, *, device: torch.device, watch: Watch) -> None:
        self._group = group
        self._device = device
        self._watch = watch
        self._thread = TaskThread(device)
        self._known: dict[int, list[tuple[Form | None, ...]]] = {}
        self._expected: dict[int, tuple[int, Future[StageMessage]]] = {}

    def expect(self, number: int, peer: int) -> None:
        """Receive a message from `peer` as soon as it is sent, to be taken by `number`."""
        if number not in self._expected:
            self._expected[number] = peer, self._thread.submit(partial(self._receive, peer))

    def take(self, number: int, *, what: str) -> StageMessage:
        """Return the message expected under that number, once it is there."""
        peer, future = self._expected.pop(number)
        message = self._watch.wait(future, suspects=[peer], what=what)
        if self._device.type == "cuda":
            for tensor in message.tensors:
                if tensor is not None:
                    tensor.record_stream(torch.cuda.current_stream(self._device))
        return message

    def finish(self) -> bool:
        """Take what is still expected; return whether all of it were ends."""
        messages = [self.take(number, what="the end of the minibatches") for number in list(self._expected)]
        return all(message.is_end for message in messages)

    def close(self) -> None:
        self._thread.close()

    def _receive(self, peer: int) -> StageMessage:
        header = self._fill(torch.empty(_HEADER_NUMBERS, dtype=torch.int64, device=self._device), peer)
        kind, number, form_number, length = header.tolist()
        known = self._known.setdefault(peer, [])
        if form_number == len(known):
            numbers = torch.empty(length, dtype=torch.int64, device=self._device)
            known.append(decode(self._fill(numbers, peer).tolist() if length else []))
        forms = known[form_number]
        if kind != StageMessageKind.TENSORS:
            return StageMessage(number, forms, is_end=kind == StageMessageKind.END)
        tensors = [None if form is None else self._fill(form.empty(self._device), peer) for form in forms]
        return StageMessage(number, forms, tuple(tensors))

    def _fill(self, tensor: Tensor, peer: int) -> Tensor:
        if not tensor.numel():
            return tensor
        work: Any = dist.irecv(tensor, group=self._group, group_src=peer)
        work.wait()
        if tensor.is_cuda:
            torch.cuda.current_stream(tensor.device).synchronize()
        return tensor


def _wait_for_all(works: list[Any], tensors: list[Tensor]) -> None:
    """Wait for the sends, then let go of their tensors."""
    for work in works:
        work.wait()
    tensors.clear()
