"""Asynchronous 1F1B: every stage starts the next minibatch while earlier ones are still in flight.

Each call of `step` does, on a rank whose turn it is, one forward pass. Once the pipeline from here on is full, it also
does one backward pass, of the oldest minibatch in flight:

    stage 0     F0 F1 F2    B0 F3    B1 F4    B2 ...        three in flight
    stage 1        F0 F1 B0    F2 B1    F3 B2 ...           two
    stage 2           F0 B0    F1 B1    F2 B2 ...           one

A `VersionRule` determines which version of the weights each minibatch uses, and how many minibatches make an update.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.pipeline.compute import fitting, forward
from sandtable.methods.pipeline.driver import Batch, PipelineSetup, ScheduleDriver
from sandtable.methods.pipeline.forms import Form, as_tuple, forms_of
from sandtable.methods.pipeline.splitting import BatchSlice, split, to_device
from sandtable.methods.pipeline.version_rules import VersionRule
from sandtable.methods.pipeline.versions import Version, Versions

__all__ = ["AsynchronousDriver"]


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A minibatch between its forward and its backward pass."""

    minibatch: int
    version: Version
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    """The loss, on the last stage."""


class AsynchronousDriver(ScheduleDriver):
    """Runs one stage. Minibatches and versions are numbered from the last time the pipeline was empty."""

    def __init__(self, setup: PipelineSetup, rule: VersionRule, *, parts: int = 1) -> None:
        """Cut each batch into `parts`, whose gradients add up to that of the batch."""
        self._setup = setup
        self._rule = rule
        self._parts = parts
        ((self._stage, self._module),) = setup.modules.items()
        self._replicas = len(setup.layout.ranks(self._stage))
        self._versions = Versions(self._module, setup.optimizer, on_gradient=setup.averaging.note_gradient)
        self._in_flight: deque[_InFlight] = deque()
        self._begun = 0
        self._done = (0, 0)
        """Minibatches and updates before the pipeline was last empty."""
        self._forms_seen: set[tuple[Form | None, ...]] = set()

    @property
    def most_versions_held(self) -> int:
        return self._versions.most_held

    def step(self, inputs: Batch | None, targets: Any) -> Tensor | None:
        setup = self._setup
        parts = split(inputs if setup.holds_first else None, targets if setup.holds_last else None, parts=self._parts)
        losses = [self._one(part) for part in parts]
        known = [loss for loss in losses if loss is not None]
        return torch.stack(known).sum() if known else None

    def drain(self) -> None:
        """Finish what is in flight; afterwards the next minibatch is number 0 of an empty pipeline."""
        if not self._begun:
            return
        self._send_ends()
        while self._in_flight:
            self._backward(is_drain=True)
        if self._last_turn_before(self._begun) < self._first_of_update(self._begun - 1):
            self._end_round(self._begun - 1, is_drain=True)
        self._settle(0, is_drain=True)
        setup = self._setup
        if not setup.links.activations_in.finish():
            raise self._out_of_step(self._begun)
        setup.links.activations_out.flush()
        setup.links.gradients_out.flush()
        self._done = (self._done[0] + self._begun, self._done[1] + self._versions.latest)
        self._versions.restart()
        self._begun = 0

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._done = tuple(state["done"])

    def _one(self, part: BatchSlice) -> Tensor | None:
        """Begin one minibatch, and finish the oldest if enough are in flight."""
        layout, minibatch = self._setup.layout, self._begun
        self._begun += 1
        turn = layout.next_turn(self._setup.rank, self._stage, minibatch)
        self._expect_activations(turn)
        if turn != minibatch:
            return None
        loss = self._forward(minibatch, part)
        if len(self._in_flight) == layout.in_flight(self._stage):
            self._backward()
        return loss

    def _forward(self, minibatch: int, part: BatchSlice) -> Tensor | None:
        inputs = self._inputs(minibatch, part)
        needed = self._rule.version(self._stage, minibatch)
        if self._versions.latest < needed:
            self._settle(0)
        version = self._versions.take(needed)
        setup, loss, number = self._setup, None, self._done[0] + minibatch
        with setup.record.timed(
            stage=self._stage, minibatch=number, is_forward=True, version=self._done[1] + version.number
        ):
            output = self._compute(inputs, version)
            if setup.holds_last:
                loss = setup.loss(output, to_device(part.targets, setup.device)) * part.share
        outputs = as_tuple(output) if loss is None else (loss,)
        if not setup.holds_last:
            peer = setup.layout.rank_for(self._stage + 1, minibatch)
            setup.links.activations_out.send(peer, minibatch, outputs)
            setup.links.gradients_in.expect(minibatch, peer)
        self._in_flight.append(_InFlight(minibatch, version, inputs, outputs))
        return None if loss is None else loss.detach()

    def _inputs(self, minibatch: int, part: BatchSlice) -> tuple[Tensor, ...]:
        setup = self._setup
        if setup.holds_first:
            return to_device(as_tuple(part.inputs), setup.device)
        message = setup.links.activations_in.take(minibatch, what=f"minibatch {self._done[0] + minibatch}")
        if message.is_end:
            raise self._out_of_step(minibatch)
        assert message.number == minibatch, f"minibatch {message.number} came instead of {minibatch}"
        self._expect_activations(minibatch + self._replicas)
        tensors: list[Tensor] = []
        for form, tensor in zip(message.forms, message.tensors, strict=True):
            assert form is not None
            assert tensor is not None
            tensors.append(tensor.requires_grad_(form.requires_grad))
        return tuple(tensors)

    def _out_of_step(self, num: int) -> MethodError:
        peer = self._setup.layout.name(self._setup.layout.rank_for(self._stage - 1, num))
        return MethodError(
            f"all ranks must call step() equally often, but {self._setup.layout.name(self._setup.rank)} and {peer} "
            f"differ after {num} minibatches since the pipeline was empty; give all ranks the same batches"
        )

    def _expect_activations(self, minibatch: int) -> None:
        if not self._setup.holds_first:
            self._setup.links.activations_in.expect(minibatch, self._setup.layout.rank_for(self._stage - 1, minibatch))

    def _compute(self, inputs: tuple[Tensor, ...], version: Version) -> Any:
        forms = forms_of(inputs)
        with fitting(self._stage, () if forms in self._forms_seen else forms):
            output = forward(self._module, inputs, weights=version.weights, recompute=self._setup.recompute)
        self._forms_seen.add(forms)
        return output

    def _backward(self, *, is_drain: bool = False) -> None:
        """Run the backward pass of the oldest minibatch, and update if it was this rank's last one for the update."""
        oldest = self._in_flight.popleft()
        setup, minibatch = self._setup, oldest.minibatch
        gradients: Sequence[Tensor | None] = ()
        if not setup.holds_last:
            what = f"the gradient of minibatch {self._done[0] + minibatch}"
            gradients = setup.links.gradients_in.take(minibatch, what=what).tensors
        completes = (minibatch + self._replicas) // self._per_update > minibatch // self._per_update or (
            is_drain and not self._in_flight
        )
        if completes:
            setup.averaging.begin_last_pass()
        with setup.record.timed(
            stage=self._stage,
            minibatch=self._done[0] + minibatch,
            is_forward=False,
            version=self._done[1] + oldest.version.number,
        ):
            _run_backward(oldest.outputs, gradients)
        if not setup.holds_first:
            peer = setup.layout.rank_for(self._stage - 1, minibatch)
            setup.links.gradients_out.send(
                peer, minibatch, [tensor.grad for tensor in oldest.inputs if tensor.requires_grad]
            )
        self._versions.release(oldest.version)
        if completes:
            self._end_round(minibatch, is_drain=is_drain)

    def _end_round(self, minibatch: int, *, is_drain: bool) -> None:
        """Submit this rank's gradients, which are complete, for the update to which the minibatch belongs."""
        size = self._per_update
        if is_drain:
            size = min(size, self._begun - self._first_of_update(minibatch))
        self._setup.ties.send()
        # Parts of a batch are weighted already.
        self._setup.averaging.end_round(minibatches=1 if self._parts > 1 else size)
        self._settle(self._rule.delay(self._stage), is_drain=is_drain)

    def _settle(self, num_pending: int, *, is_drain: bool = False) -> None:
        """Make updates until only `num_pending` are left for later."""
        while self._setup.averaging.num_pending > num_pending:
            latest = self._versions.latest
            following = self._setup.layout.next_turn(self._setup.rank, self._stage, self._begun)
            keep_from = latest + 1 if is_drain else min(self._rule.version(self._stage, following), latest + 1)
            with self._setup.averaging.settled():
                self._setup.ties.add_up()
                self._versions.update(keep_from=keep_from)

    @property
    def _per_update(self) -> int:
        return self._rule.per_update(self._stage)

    def _first_of_update(self, minibatch: int) -> int:
        return minibatch // self._per_update * self._per_update

    def _last_turn_before(self, minibatch: int) -> int:
        following = self._setup.layout.next_turn(self._setup.rank, self._stage, minibatch)
        return following - self._replicas

    def _send_ends(self) -> None:
        """Notify the next stage that the minibatch it expects will not come, if this rank would have sent it."""
        setup, layout = self._setup, self._setup.layout
        if setup.holds_last:
            return
        for peer in layout.ranks(self._stage + 1):
            expected = layout.next_turn(peer, self._stage + 1, self._begun)
            if layout.rank_for(self._stage, expected) == setup.rank:
                setup.links.activations_out.end(peer)


def _run_backward(outputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Run autograd from the outputs that need a gradient; without `gradients`, the output is the loss."""
    wanting = [output for output in outputs if output.requires_grad]
    if not gradients:
        given: list[Tensor | None] = [None] * len(wanting)
        pairs = list(zip(wanting, given, strict=True))
    else:
        pairs = [pair for pair in zip(wanting, gradients, strict=True) if pair[1] is not None]
    if pairs:
        torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
