"""Pipeline: a model cut into stages on different ranks; the training loop stays yours.

    stages = [nn.Sequential(...), nn.Sequential(...), nn.Sequential(...)]
    pipeline = Pipeline(stages, lambda parameters: torch.optim.SGD(parameters, lr=0.1), loss=nn.CrossEntropyLoss(),
                        schedule=PipeDream(), replicas=(2, 1, 1))
    for inputs, targets in loader:
        loss = pipeline.step(inputs, targets)
    pipeline.close()

Every rank runs the same loop over the same batches; a rank that holds neither the first nor the last stage may pass
None. What leaves stage k, a tensor or a tuple of tensors, enters stage k + 1.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from sandtable.errors import MethodError
from sandtable.methods.pipeline.averaging import Averaging
from sandtable.methods.pipeline.checks import agreed, check_settings, check_ties, device_of, held_stages
from sandtable.methods.pipeline.driver import Batch, Loss, PipelineSetup
from sandtable.methods.pipeline.forms import as_tuple
from sandtable.methods.pipeline.layout import StageLayout
from sandtable.methods.pipeline.links import Links
from sandtable.methods.pipeline.messages import PipelineTraffic
from sandtable.methods.pipeline.record import PipelineRecord
from sandtable.methods.pipeline.schedule import Flush, Schedule
from sandtable.methods.pipeline.splitting import to_device
from sandtable.methods.pipeline.ties import Tie, Ties, check_copies, find_ties
from sandtable.methods.transport.buffers import Buffers
from sandtable.methods.transport.vectors import flatten
from sandtable.methods.transport.wire import Wire

__all__ = ["Pipeline"]

OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer]


class Pipeline:
    """Trains a model in stages.

    - `stages`: all stages; those that only other ranks hold may be None.
    - `optimizer`: a function that makes an optimizer for the parameters held here.
    - `loss`: a function of (output, targets).
    - `schedule`: `Flush` with four micro-batches per stage by default.
    - `replicas`: `replicas[k]` ranks of the group hold stage k, and start with the weights of the first of them.
    - `group`: the ranks of the pipeline; all ranks by default.
    - `data_group`: the ranks that hold the same stage of other pipelines, each trained on its own data; gradients
      are averaged over it as well.
    - `tied`: for each parameter that stages share, (stage, name) of its copies; by default, parameters that are the
      same object in several stages.
    - `recompute`: keep only what enters a stage, and compute the rest again in the backward pass.
    - `timeout_s`: how long to wait for a peer before giving up.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module | None],
        optimizer: OptimizerFactory,
        *,
        loss: Loss,
        schedule: Schedule | None = None,
        replicas: Sequence[int] | None = None,
        group: dist.ProcessGroup | None = None,
        data_group: dist.ProcessGroup | None = None,
        tied: Sequence[Tie] | None = None,
        recompute: bool = False,
        timeout_s: float = 300.0,
    ) -> None:
        group = Wire(group).group
        self.schedule: Schedule = Flush(4 * max(1, len(stages))) if schedule is None else schedule
        self.rank = dist.get_rank(group)
        ties = find_ties(stages) if tied is None else [sorted(tie) for tie in tied]

        def prepare() -> tuple[tuple[StageLayout, dict[int, nn.Module]], str]:
            check_settings(loss, self.schedule, optimizer, timeout_s=timeout_s)
            layout = self._lay_out(len(stages), replicas, group)
            check_ties(self.schedule, ties, layout, is_alone=data_group is None)
            modules = held_stages(stages, layout, self.rank)
            check_copies(ties, modules)
            device_of(modules)
            return (layout, modules), f"{self.schedule} of {len(stages)} stages on {layout.replicas}, tied {ties}"

        self.layout, self.modules = agreed(group, prepare)
        self.device = device_of(self.modules)
        self._own = nn.ModuleList(self.modules.values())
        parameters = [parameter for parameter in self._own.parameters() if parameter.requires_grad]
        self.optimizer = optimizer(parameters) if parameters else None
        self._links = Links(self.layout, group, data_group, device=self.device, timeout_s=timeout_s)
        self._ties = Ties(ties, self.modules, layout=self.layout, rank=self.rank, links=self._links)
        self._averaging = Averaging(parameters, self._links, device=self.device)
        self._links.together(self._start_equal, what="the first weights")
        self._ties.start_equal()
        self._links.traffic.reset()
        self.record = PipelineRecord(self.layout, self.rank, self._links)
        self._driver = self.schedule.driver(
            PipelineSetup(
                layout=self.layout,
                rank=self.rank,
                modules=self.modules,
                optimizer=self.optimizer,
                loss=loss,
                averaging=self._averaging,
                ties=self._ties,
                links=self._links,
                record=self.record,
                device=self.device,
                recompute=recompute,
            )
        )
        self._predicted = 0
        self._has_trained = False
        self._is_closed = False

    def step(self, inputs: Batch | None = None, targets: Any = None) -> Tensor | None:
        """Train on one minibatch; return the loss on the rank of the last stage that works on it, None elsewhere.

        All ranks call it for every minibatch, in the same order. Only the first stage needs the inputs and only the
        last the targets: see `takes_inputs` and `takes_targets`.
        """
        for is_taken, value, words in (
            (self.takes_inputs, inputs, ("first", "inputs")),
            (self.takes_targets, targets, ("last", "targets")),
        ):
            if is_taken and value is None:
                raise MethodError(
                    f"the {words[0]} stage must be given {words[1]}, but {self.layout.name(self.rank)} got None; "
                    "call step(inputs, targets) on ranks that hold the first or the last stage"
                )
        if self.takes_inputs:
            as_tuple(inputs, what="inputs")
        self._has_trained = True
        return self._driver.step(inputs, targets)

    def drain(self) -> None:
        """Finish the minibatches in flight, so that all stages have seen the same ones. All ranks call it."""
        self._driver.drain()

    def synchronize(self) -> None:
        """Drain, and average buffers (running statistics) over replicas and other pipelines. All ranks call it."""
        self.drain()
        self._average_buffers(self._links.sharing)

    @torch.no_grad()
    def predict(self, inputs: Batch | None = None) -> Any:
        """Return the model's output in evaluation mode, on one rank of the last stage; None elsewhere.

        All ranks call it. Replicas take turns, so consecutive calls overlap.
        """
        self.drain()
        if self._has_trained:
            self._average_buffers([self._links.replicas])
        training = [module for module in self._own.modules() if module.training]
        self._own.eval()
        try:
            return self._forward(inputs)
        finally:
            for module in training:
                module.training = True

    @property
    def takes_inputs(self) -> bool:
        """Return whether this rank holds the first stage."""
        return 0 in self.modules

    @property
    def takes_targets(self) -> bool:
        """Return whether this rank holds the last stage."""
        return self.layout.num_stages - 1 in self.modules

    @property
    def traffic(self) -> PipelineTraffic:
        """A copy of what this rank has sent so far, in step() and predict()."""
        now = copy.copy(self._links.traffic)
        for wire in self._links.sharing:
            now.weight_bytes += wire.counters.sent_bytes
            now.messages += wire.counters.messages
        return now

    @property
    def waited_s(self) -> float:
        """Seconds this rank has spent waiting for messages of others, or for its own to arrive."""
        return self._links.watch.waited_s

    @property
    def most_versions_held(self) -> int:
        """The largest number of weight versions this rank has held at once."""
        return self._driver.most_versions_held

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's stages and optimizer; save one per rank. It drains the pipeline: all ranks call it."""
        self.drain()
        return {
            "pipeline": self._description,
            "stages": {stage: copy.deepcopy(module.state_dict()) for stage, module in self.modules.items()},
            "optimizer": None if self.optimizer is None else copy.deepcopy(self.optimizer.state_dict()),
            "driver": self._driver.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from this rank's `state_dict()`."""
        if state["pipeline"] != self._description:
            raise MethodError(
                f"a state must be of the same pipeline and rank ({self._description}), but it is of "
                f"{state['pipeline']}; start the same ranks with the same stages, or load only the stages' weights"
            )
        self.drain()
        for stage, module in self.modules.items():
            module.load_state_dict(state["stages"][stage])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self._driver.load_state_dict(state["driver"])

    def close(self) -> None:
        """Drain, and end together; a rank that left without closing would be taken for dead. All ranks call it."""
        if self._is_closed:
            return
        self._is_closed = True
        self.drain()
        self._links.close()
        self._averaging.close()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()

    @property
    def _description(self) -> str:
        return f"{self.schedule} of {self.layout.num_stages} stages on {self.layout.replicas}, rank {self.rank}"

    def _lay_out(self, num_stages: int, replicas: Sequence[int] | None, group: dist.ProcessGroup) -> StageLayout:
        ranks = tuple(dist.get_process_group_ranks(group))
        layout = StageLayout.of(
            num_stages=num_stages,
            num_ranks=len(ranks),
            replicas=replicas,
            is_interleaved=self.schedule.is_interleaved,
        )
        layout = replace(layout, global_ranks=ranks)
        self.schedule.check(layout)
        return layout

    def _start_equal(self) -> None:
        """Copy the weights of the first pipeline to the others, and of the first replica to the others."""
        for wire in self._links.sharing:
            for vector in flatten(parameter.detach() for parameter in self._own.parameters()):
                vector.load_weights()
                wire.broadcast(vector.data)
                vector.store_weights()
            Buffers(self._own, wire, policy="first").start_equal()
        for wire in self._links.sharing:
            wire.counters.reset()

    def _average_buffers(self, wires: Sequence[Wire]) -> None:
        for wire in wires:
            exchange = Buffers(self._own, wire, policy="average").exchange
            self._links.together(exchange, what="the running statistics of the other replicas")
        self._has_trained = False

    def _forward(self, inputs: Batch | None) -> Any:
        number, self._predicted = self._predicted, self._predicted + 1
        values: tuple[Tensor, ...] = ()
        for stage, module in sorted(self.modules.items()):
            if self.layout.rank_for(stage, number) != self.rank:
                return None
            values = self._entering(stage, number, inputs, values)
            output = module(*values)
            if stage == self.layout.num_stages - 1:
                return output
            values = as_tuple(output)
            if (peer := self.layout.rank_for(stage + 1, number)) != self.rank:
                self._links.activations_out.send(peer, number, values)
        return None

    def _entering(
        self, stage: int, number: int, inputs: Batch | None, values: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        if stage == 0:
            if inputs is None:
                raise MethodError("the first stage must be given inputs to predict from, but got None")
            return to_device(as_tuple(inputs, what="inputs"), self.device)
        if (peer := self.layout.rank_for(stage - 1, number)) == self.rank:
            return values
        self._links.activations_in.expect(number, peer)
        message = self._links.activations_in.take(number, what=f"inputs number {number} to predict from")
        return tuple(tensor for tensor in message.tensors if tensor is not None)
