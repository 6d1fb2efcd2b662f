"""Messages between stages: tensors of any shape, one way, in order.

    header  [kind, number, form, length]    four numbers
    forms                                   only the first time these shapes go to this peer
    tensors                                 one after the other, as they are

Sending never waits: the porter holds what was sent until it has arrived. Receiving happens in a thread, which is told
beforehand what to expect from whom, so that a message travels while the stage computes. Each direction has a process
group of its own, so that between two ranks all messages of a group go one way, and their order is the same on both.
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
from sandtable.methods.pipeline.porter import Porter
from sandtable.methods.pipeline.traffic import Traffic
from sandtable.methods.pipeline.watch import Watch

__all__ = ["Inbox", "Message", "Outbox"]

_HEADER_NUMBERS = 4


class Kind(IntEnum):
    """What follows a header."""

    TENSORS = 0
    FORMS_ONLY = 1
    END = 2


@dataclass(frozen=True, slots=True)
class Message:
    """`tensors` are aligned with `forms`; nothing is sent for a form that is None, and none for a mere announcement."""

    number: int
    forms: tuple[Form | None, ...]
    tensors: tuple[Tensor | None, ...] = ()
    is_end: bool = False


class Outbox:
    """Sends in one direction. `carries` is the field of the traffic that counts what the tensors hold."""

    def __init__(
        self, group: dist.ProcessGroup, *, device: torch.device, watch: Watch, traffic: Traffic, carries: str
    ) -> None:
        self._group = group
        self._device = device
        self._watch = watch
        self._traffic = traffic
        self._carries = carries
        self._porter = Porter(device)
        self._known: dict[tuple[int, tuple[Form | None, ...]], int] = {}
        self._under_way: list[tuple[int, Future[None]]] = []

    def send(self, peer: int, number: int, tensors: Sequence[Tensor | None]) -> None:
        """Tensors to a rank of the group; they must not be written to afterwards."""
        forms = forms_of(tensors)
        # Of a tensor without elements the form says it all.
        parcels = [each.detach().contiguous() for each in tensors if each is not None and each.numel()]
        carried = sum(parcel.nbytes for parcel in parcels)
        setattr(self._traffic, self._carries, getattr(self._traffic, self._carries) + carried)
        self._traffic.messages += len(parcels)
        self._post(peer, [*self._label(Kind.TENSORS, peer, number, forms), *parcels])

    def announce(self, peer: int, number: int, forms: Sequence[Form | None]) -> None:
        """A number and forms, without tensors."""
        self._post(peer, self._label(Kind.FORMS_ONLY, peer, number, tuple(forms)))

    def end(self, peer: int) -> None:
        """Nothing follows, though something may be expected."""
        self._post(peer, self._label(Kind.END, peer, 0, ()))

    def flush(self) -> None:
        """Until everything sent has arrived."""
        for peer, future in self._under_way:
            self._watch.wait(future, suspects=[peer], what="it to take what was sent")
        self._under_way.clear()

    def close(self) -> None:
        self._porter.close()

    def _label(self, kind: Kind, peer: int, number: int, forms: tuple[Form | None, ...]) -> list[Tensor]:
        known = self._known.get((peer, forms))
        numbers = [] if known is not None else encode(forms)
        if known is None:
            known = sum(1 for other, _ in self._known if other == peer)
            self._known[peer, forms] = known
        label = [torch.tensor([kind, number, known, len(numbers)], dtype=torch.int64, device=self._device)]
        if numbers:
            label.append(torch.tensor(numbers, dtype=torch.int64, device=self._device))
        self._traffic.control_bytes += sum(part.nbytes for part in label)
        self._traffic.messages += len(label)
        return label

    def _post(self, peer: int, parcels: list[Tensor]) -> None:
        self._look_back()
        works: list[Any] = [dist.isend(parcel, group=self._group, group_dst=peer) for parcel in parcels]
        self._under_way.append((peer, self._porter.submit(partial(_see_off, works, parcels))))

    def _look_back(self) -> None:
        """Forget what has arrived; an error of what has not is raised now."""
        while self._under_way and self._under_way[0][1].done():
            peer, future = self._under_way.pop(0)
            if future.exception() is not None:
                self._watch.wait(future, suspects=[peer], what="it to take what was sent")


class Inbox:
    """Receives in one direction what it was told to expect, in that order."""

    def __init__(self, group: dist.ProcessGroup, *, device: torch.device, watch: Watch) -> None:
        self._group = group
        self._device = device
        self._watch = watch
        self._porter = Porter(device)
        self._known: dict[int, list[tuple[Form | None, ...]]] = {}
        self._expected: dict[int, tuple[int, Future[Message]]] = {}

    def expect(self, number: int, peer: int) -> None:
        """A message will come from the rank, to be taken by that number; it is received as soon as it is sent."""
        if number not in self._expected:
            self._expected[number] = peer, self._porter.submit(partial(self._receive, peer))

    def take(self, number: int, *, what: str) -> Message:
        """The message expected by that number, when it is there."""
        peer, future = self._expected.pop(number)
        message = self._watch.wait(future, suspects=[peer], what=what)
        if self._device.type == "cuda":
            for tensor in message.tensors:
                if tensor is not None:
                    tensor.record_stream(torch.cuda.current_stream(self._device))
        return message

    def finish(self) -> bool:
        """Take what is still expected; whether all of it were ends."""
        messages = [self.take(number, what="the end of the minibatches") for number in list(self._expected)]
        return all(message.is_end for message in messages)

    def close(self) -> None:
        self._porter.close()

    def _receive(self, peer: int) -> Message:
        header = self._fill(torch.empty(_HEADER_NUMBERS, dtype=torch.int64, device=self._device), peer)
        kind, number, form, length = header.tolist()
        known = self._known.setdefault(peer, [])
        if form == len(known):
            numbers = torch.empty(length, dtype=torch.int64, device=self._device)
            known.append(decode(self._fill(numbers, peer).tolist() if length else []))
        forms = known[form]
        if kind != Kind.TENSORS:
            return Message(number, forms, is_end=kind == Kind.END)
        tensors = [None if each is None else self._fill(each.empty(self._device), peer) for each in forms]
        return Message(number, forms, tuple(tensors))

    def _fill(self, tensor: Tensor, peer: int) -> Tensor:
        if not tensor.numel():
            return tensor
        work: Any = dist.irecv(tensor, group=self._group, group_src=peer)
        work.wait()
        if tensor.is_cuda:
            torch.cuda.current_stream(tensor.device).synchronize()
        return tensor


def _see_off(works: list[Any], parcels: list[Tensor]) -> None:
    for work in works:
        work.wait()
    parcels.clear()
