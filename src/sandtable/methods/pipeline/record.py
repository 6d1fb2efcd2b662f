"""Pipeline records: which rank ran which pass when.

Every forward and backward pass is recorded with its minibatch and the version of the weights it used. Times count from
the moment the pipeline was made, which all ranks share: exactly on one machine, and within the latency of a message
between machines. On GPUs a pass is timed when the host issues it. Only the last passes are kept.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from sandtable.methods.pipeline.layout import StageLayout
from sandtable.methods.pipeline.links import Links
from sandtable.methods.pipeline.picture import Pass, draw_page, draw_schedule

__all__ = ["PipelineRecord"]

_KEPT = 10_000


class PipelineRecord:
    """The `passes` of this rank, oldest first; `gather` returns those of all ranks."""

    def __init__(self, layout: StageLayout, rank: int, links: Links) -> None:
        self.passes: deque[Pass] = deque(maxlen=_KEPT)
        self._layout = layout
        self._rank = rank
        self._links = links
        self._zero = links.together(partial(_common_zero, links.control), what="the others to begin")

    @contextmanager
    def timed(self, *, stage: int, minibatch: int, is_forward: bool, version: int = 0) -> Iterator[None]:
        """Record what happens within as one pass."""
        start = time.perf_counter()
        yield
        self.passes.append(
            Pass(
                rank=self._rank,
                stage=stage,
                minibatch=minibatch,
                is_forward=is_forward,
                version=version,
                start_s=start - self._zero,
                end_s=time.perf_counter() - self._zero,
            )
        )

    def clear(self) -> None:
        self.passes.clear()

    def gather(self) -> list[Pass]:
        """Return the passes of all ranks on the group's first rank, an empty list elsewhere. All ranks call it."""
        everyone: list[Any] | None = [None] * self._layout.num_ranks if self._rank == 0 else None
        own, group = list(self.passes), self._links.control
        self._links.together(
            lambda: dist.gather_object(own, everyone, group=group, group_dst=0), what="the passes of the others"
        )
        return [one_pass for passes in everyone or () for one_pass in passes]

    def save_svg(self, path: str | Path, *, minibatches: range | None = None) -> None:
        """Draw the schedule as an SVG, on the group's first rank. All ranks call it."""
        passes = self._chosen(minibatches)
        if self._rank == 0:
            Path(path).write_text(draw_schedule(passes, self._row_names()), encoding="utf-8")

    def save_html(self, path: str | Path, *, minibatches: range | None = None) -> None:
        """Draw the schedule as an HTML page, on the group's first rank. All ranks call it."""
        passes = self._chosen(minibatches)
        if self._rank == 0:
            Path(path).write_text(draw_page(passes, self._row_names()), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        return {"passes": [asdict(one_pass) for one_pass in self.passes]}

    def _chosen(self, minibatches: range | None) -> list[Pass]:
        return [one_pass for one_pass in self.gather() if minibatches is None or one_pass.minibatch in minibatches]

    def _row_names(self) -> Sequence[str]:
        return [self._layout.name(rank) for rank in range(self._layout.num_ranks)]


def _common_zero(group: dist.ProcessGroup) -> float:
    """Return this rank's clock at a moment that all share. Processes of one boot of a machine share one clock."""
    dist.barrier(group)
    now = time.perf_counter()
    boot = Path("/proc/sys/kernel/random/boot_id")
    own = boot.read_text() if boot.exists() else ""
    dist.broadcast_object_list(first := [(own, now)], group=group, group_src=0)
    there, then = first[0]
    return then if own and own == there else now
