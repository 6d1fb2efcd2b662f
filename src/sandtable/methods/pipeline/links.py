"""Links: the connections of one rank of a pipeline, with a process group for each kind of traffic.

So our threads never interfere with the script's own messages, nor with each other's. torch names groups by how many a
rank has made, so all ranks make the same number of groups, in the same order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist

from sandtable.errors import MethodError
from sandtable.methods.pipeline.layout import StageLayout
from sandtable.methods.pipeline.messages import Inbox, Outbox, PipelineTraffic
from sandtable.methods.pipeline.task_thread import TaskThread
from sandtable.methods.pipeline.watch import Watch
from sandtable.methods.transport.wire import Wire

__all__ = ["Links"]

Result = TypeVar("Result")

_FOREVER = timedelta(days=365)
"""Timeout of groups in which a rank may wait for what comes much later; `Watch` enforces `timeout_s`."""


@dataclass(frozen=True, slots=True)
class _Groups:
    """This rank's process groups."""

    forth: dist.ProcessGroup
    back: dist.ProcessGroup
    sideways: dist.ProcessGroup
    control: dist.ProcessGroup
    replicas: dist.ProcessGroup
    column: dist.ProcessGroup
    pipelines: dist.ProcessGroup | None

    @classmethod
    def of(
        cls, layout: StageLayout, group: dist.ProcessGroup, data_group: dist.ProcessGroup | None, timeout_s: float
    ) -> "_Groups":
        everyone = dist.get_process_group_ranks(group)
        rank = dist.get_rank(group)
        replicas = layout.ranks(layout.seat(rank)[0])
        column = layout.column(rank) if layout.has_equal_replicas else range(layout.num_ranks)
        return cls(
            _new_group(everyone, "pipeline forth"),
            _new_group(everyone, "pipeline back"),
            _new_group(everyone, "pipeline ties"),
            _new_group(everyone, "pipeline watch", backend="gloo"),
            _new_group([everyone[member] for member in replicas], "pipeline replicas"),
            _new_group([everyone[member] for member in column], "pipeline", timeout=timedelta(seconds=timeout_s)),
            None if data_group is None else _new_group(dist.get_process_group_ranks(data_group), "pipelines"),
        )


class Links:
    """Sends activations one way and gradients the other; replicas and other pipelines share gradients."""

    def __init__(
        self,
        layout: StageLayout,
        group: dist.ProcessGroup,
        data_group: dist.ProcessGroup | None,
        *,
        device: torch.device,
        timeout_s: float,
    ) -> None:
        self.traffic = PipelineTraffic()
        self.num_ranks = layout.num_ranks
        self._thread = TaskThread(device)
        groups = self._joined(lambda: _Groups.of(layout, group, data_group, timeout_s), timeout_s)
        self.control = groups.control
        """Control messages, over gloo also where tensors are on GPUs."""
        self.column = groups.column
        """The ranks of this pipeline, where replicas are equal; torch's schedules run in it."""
        self.replicas = Wire(groups.replicas)
        rank = dist.get_rank(group)
        self.other_replicas = [other for other in layout.ranks(layout.seat(rank)[0]) if other != rank]
        self.pipelines = None if groups.pipelines is None else Wire(groups.pipelines)
        self.watch = watch = Watch(groups.control, name=layout.name, timeout_s=timeout_s)
        outbox = partial(Outbox, device=device, watch=watch, traffic=self.traffic)
        self.activations_out = outbox(groups.forth, carries="activation_bytes")
        self.gradients_out = outbox(groups.back, carries="gradient_bytes")
        self.ties_out = outbox(groups.sideways, carries="weight_bytes")
        self.activations_in = Inbox(groups.forth, device=device, watch=watch)
        self.gradients_in = Inbox(groups.back, device=device, watch=watch)
        self.ties_in = Inbox(groups.sideways, device=device, watch=watch)

    def together(self, task: Callable[[], Result], *, what: str) -> Result:
        """Run a task that needs the other ranks as well; raise if one of them is gone or takes too long."""
        return self.watch.wait(self._thread.submit(task), what=what)

    @property
    def sharing(self) -> list[Wire]:
        """The wires to the ranks with the same weights, other pipelines first."""
        return [wire for wire in (self.pipelines, self.replicas) if wire is not None]

    def close(self) -> None:
        """End together with all other ranks."""
        self.activations_out.flush()
        self.gradients_out.flush()
        self.ties_out.flush()
        self.watch.close()
        outboxes = (self.activations_out, self.gradients_out, self.ties_out)
        inboxes = (self.activations_in, self.gradients_in, self.ties_in)
        for closing in (*outboxes, *inboxes, self._thread):
            closing.close()

    def _joined(self, join: Callable[[], _Groups], timeout_s: float) -> _Groups:
        try:
            return self._thread.submit(join).result(timeout_s)
        except TimeoutError:
            raise MethodError(
                f"all ranks must join a pipeline within timeout_s ({timeout_s:g} s), but one did not; look for an "
                "error on another rank"
            ) from None


def _new_group(
    ranks: Sequence[int], name: str, *, timeout: timedelta = _FOREVER, backend: str | None = None
) -> dist.ProcessGroup:
    group = dist.new_group(
        list(ranks), timeout=timeout, backend=backend, use_local_synchronization=True, group_desc=name
    )
    assert isinstance(group, dist.ProcessGroup)
    return group
