"""Synchronous schedules: torch.distributed.pipelining's own, with shapes found beforehand and passes recorded.

torch's stages must know the shapes they will receive. Each rank learns from the one before how many micro-batches
there are and what they look like. It tries a shape it has not seen on zeros (the first stage, on rows of the batch),
announces its output to the next rank, and keeps torch's schedule for when the shape comes again. So a smaller last
batch, or sequences of another length, need nothing special.

All micro-batches of a batch must have the same number of rows, so a batch is cut into the largest number of them, up to
`micro_batches`, that divides it. Replicas make several such pipelines side by side, each with its share of the rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import ScheduleLoopedBFS

from sandtable.errors import MethodError
from sandtable.methods.pipeline.compute import WrappedStage, dry_run, fitting
from sandtable.methods.pipeline.driver import Batch, PipelineSetup, ScheduleDriver
from sandtable.methods.pipeline.forms import Form, as_tuple, forms_of
from sandtable.methods.pipeline.splitting import BatchSlice, num_rows, split, to_device

__all__ = ["SynchronousDriver", "all_forward_first", "in_turn", "interleaved"]

Forms = tuple[Form | None, ...]
_LOSS = Form((), torch.float32, True)
Build = Callable[[list[PipelineStage], int, Any], Any]


def all_forward_first(stages: list[PipelineStage], micro_batches: int, loss: Any) -> Any:
    """Return torch's GPipe."""
    return ScheduleGPipe(stages[0], micro_batches, loss_fn=loss)


def in_turn(stages: list[PipelineStage], micro_batches: int, loss: Any) -> Any:
    """Return torch's 1F1B, or GPipe for fewer micro-batches than stages: then all are in flight before one is back."""
    kind = Schedule1F1B if micro_batches >= stages[0].num_stages else ScheduleGPipe
    return kind(stages[0], micro_batches, loss_fn=loss)


def interleaved(stages: list[PipelineStage], micro_batches: int, loss: Any) -> Any:
    """Return torch's interleaved 1F1B, or breadth first where micro-batches do not divide into equal rounds."""
    rounds = max(1, micro_batches // stages[0].group_size)
    kind = ScheduleInterleaved1F1B if micro_batches % rounds == 0 else ScheduleLoopedBFS
    return kind(stages, micro_batches, loss_fn=loss)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _ShapedSchedule:
    """torch's schedule for one batch shape; `leaving` are the forms that leave the first stage held here."""

    schedule: Any
    leaving: Forms


class SynchronousDriver(ScheduleDriver):
    """Runs torch's schedule on a batch, then makes the update."""

    def __init__(self, setup: PipelineSetup, build: Build, *, micro_batches: int) -> None:
        self._setup = setup
        self._build = build
        self._micro_batches = micro_batches
        self._column = setup.layout.column(setup.rank)
        self._place, self._replica = setup.layout.seat(setup.rank)
        self._schedules: dict[tuple[int, Forms], _ShapedSchedule] = {}
        self._parts: list[BatchSlice] = []
        self._share = 1.0
        self._index = 0
        self._done = 0

    def step(self, inputs: Batch | None, targets: Any) -> Tensor | None:
        setup = self._setup
        own = split(
            inputs if setup.holds_first else None,
            targets if setup.holds_last else None,
            parts=setup.layout.replicas[0],
        )[self._replica]
        arguments = to_device(as_tuple(own.inputs), setup.device) if setup.holds_first else ()
        count, shaped = self._schedule(arguments)
        self._parts = split(None, own.targets, parts=count) if setup.holds_last else []
        self._share = own.share
        losses: list[Tensor] = []
        self._run(shaped.schedule, arguments, count, losses)
        setup.averaging.end_round(minibatches=1)
        with setup.averaging.settled():
            setup.ties.send()
            setup.ties.add_up()
            if setup.optimizer is not None:
                setup.optimizer.step()
        self._done += count
        return torch.stack(losses).mean().detach() / own.share if losses else None

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._done = state["done"]

    def _schedule(self, arguments: tuple[Tensor, ...]) -> tuple[int, _ShapedSchedule]:
        """Return the number of micro-batches and the schedule, on which all ranks agree, from first to last."""
        setup, first = self._setup, min(self._setup.modules)
        if setup.holds_first:
            count = _largest_divisor(num_rows(arguments) or 1, self._micro_batches)
            forms = forms_of(argument.tensor_split(count)[0] for argument in arguments)
        else:
            count, forms = self._receive_forms(first)
        shaped = self._schedules.get((count, forms))
        if shaped is None:
            rows = tuple(argument.tensor_split(count)[0].clone() for argument in arguments)
            shaped = self._schedules[count, forms] = self._new_schedule(count, forms, rows)
        elif self._place < setup.layout.num_places - 1:
            self._announce_forms(first, count, shaped.leaving)
        return count, shaped

    def _new_schedule(self, count: int, entering: Forms, rows: tuple[Tensor, ...]) -> _ShapedSchedule:
        """Try the shapes stage by stage through the whole pipeline: the first stage on `rows`, the others on zeros."""
        setup, stages = self._setup, list[PipelineStage]()
        leaving: dict[int, Forms] = {}
        for stage, module in sorted(setup.modules.items()):
            if stages:
                count, entering = self._receive_forms(stage)
            if stage == setup.layout.num_stages - 1:
                leaving[stage] = (_LOSS,)
            else:
                example = rows if stage == 0 else [form.zeros(setup.device) for form in entering if form is not None]
                with fitting(stage, entering):
                    leaving[stage] = dry_run(module, example, device=setup.device)
                self._announce_forms(stage, count, leaving[stage])
            stages.append(self._torch_stage(stage, entering, leaving[stage]))
        return _ShapedSchedule(self._build(stages, count, lambda loss, _: loss), leaving[min(leaving)])

    def _torch_stage(self, stage: int, entering: Forms, leaving: Forms) -> PipelineStage:
        setup, meta = self._setup, torch.device("meta")
        finish = self._loss if stage == setup.layout.num_stages - 1 else None
        return _RecordedStage(
            self._begin,
            setup,
            WrappedStage(setup.modules[stage], stage, recompute=setup.recompute, finish=finish),
            stage,
            setup.layout.num_stages,
            setup.device,
            input_args=tuple(form.zeros(meta) for form in entering if form is not None),
            output_args=tuple(form.zeros(meta) for form in leaving if form is not None),
            group=setup.links.column,
        )

    def _receive_forms(self, stage: int) -> tuple[int, Forms]:
        inbox, peer = self._setup.links.activations_in, self._column[(stage - 1) % self._setup.layout.num_places]
        inbox.expect(stage, peer)
        message = inbox.take(stage, what="the shapes of a batch")
        return message.number, message.forms

    def _announce_forms(self, stage: int, count: int, forms: Forms) -> None:
        peer = self._column[(stage + 1) % self._setup.layout.num_places]
        self._setup.links.activations_out.announce(peer, count, forms)

    def _begin(self, index: int) -> int:
        """Note that a stage begins the micro-batch of that index, and return its number."""
        self._index = index
        return self._done + index

    def _loss(self, output: Any) -> Tensor:
        """Compute the loss, which the last stage returns to torch, so that outputs and targets may be anything."""
        targets = to_device(self._parts[self._index].targets, self._setup.device)
        return self._setup.loss(output, targets) * self._share

    def _run(self, schedule: Any, arguments: tuple[Tensor, ...], count: int, losses: list[Tensor]) -> None:
        setup = self._setup
        # torch wants targets, though the last stage computes the loss.
        targets = torch.zeros(count) if setup.holds_last else None
        try:
            schedule.step(*arguments, target=targets, losses=losses if setup.holds_last else None, return_outputs=False)
        except RuntimeError as error:
            if isinstance(error.__cause__, MethodError):
                raise error.__cause__ from None
            setup.links.watch.explain(error, what="its neighbours", suspects=self._neighbours())
            raise

    def _neighbours(self) -> list[int]:
        layout, stages = self._setup.layout, self._setup.modules
        adjacent = {stage + step for stage in stages for step in (-1, 1)} & set(range(layout.num_stages))
        return sorted({self._column[stage % layout.num_places] for stage in adjacent} - {self._setup.rank})


class _RecordedStage(PipelineStage):
    """torch's stage, with its passes recorded and its bytes counted."""

    def __init__(self, begin: Callable[[int], int], setup: PipelineSetup, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._begin = begin
        self._setup = setup

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments: Any, **settings: Any) -> Any:
        number = self._begin(fwd_chunk_id)
        with self._setup.record.timed(stage=self.stage_index, minibatch=number, is_forward=True):
            return super().forward_one_chunk(fwd_chunk_id, *arguments, **settings)

    def backward_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **settings: Any) -> Any:
        number = self._begin(bwd_chunk_id)
        with self._setup.record.timed(stage=self.stage_index, minibatch=number, is_forward=False):
            return super().backward_one_chunk(bwd_chunk_id, *arguments, **settings)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        operations = super().get_fwd_send_ops(fwd_chunk_id)
        self._setup.links.traffic.activation_bytes += sum(operation.tensor.nbytes for operation in operations)
        self._setup.links.traffic.messages += len(operations)
        return operations

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        operations = super().get_bwd_send_ops(bwd_chunk_id)
        self._setup.links.traffic.gradient_bytes += sum(operation.tensor.nbytes for operation in operations)
        self._setup.links.traffic.messages += len(operations)
        return operations


def _largest_divisor(rows: int, limit: int) -> int:
    """Return the largest number up to the limit that divides the rows."""
    return next(count for count in range(min(limit, rows), 0, -1) if rows % count == 0)
