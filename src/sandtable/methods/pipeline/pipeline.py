"""Pipeline: a model cut into stages that sit on different ranks; the training loop stays its owner's.

    stages = [nn.Sequential(...), nn.Sequential(...), nn.Sequential(...)]
    pipeline = Pipeline(stages, lambda parameters: torch.optim.SGD(parameters, lr=0.1), loss=nn.CrossEntropyLoss(),
                        schedule=PipeDream(), replicas=(2, 1, 1))
    for inputs, targets in loader:
        loss = pipeline.step(inputs, targets)
    pipeline.close()

Every rank runs the same loop, over the same batches; a rank that holds neither the first nor the last stage may give
None. What leaves stage k enters stage k + 1, a tensor or a tuple of tensors.
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
from sandtable.methods.buffers import Buffers
from sandtable.methods.flat import flatten
from sandtable.methods.pipeline.agreement import agreed
from sandtable.methods.pipeline.averaging import Averaging
from sandtable.methods.pipeline.checks import check_settings, check_ties, device_of, held_stages
from sandtable.methods.pipeline.driver import Batch, Loss, Setup
from sandtable.methods.pipeline.forms import as_tuple
from sandtable.methods.pipeline.layout import Layout
from sandtable.methods.pipeline.links import Links
from sandtable.methods.pipeline.record import PipelineRecord
from sandtable.methods.pipeline.schedule import Flush, Schedule
from sandtable.methods.pipeline.splitting import to_device
from sandtable.methods.pipeline.ties import Tie, Ties, check_copies, find_ties
from sandtable.methods.pipeline.traffic import Traffic
from sandtable.methods.wire import Wire

__all__ = ["Pipeline"]

OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer]


class Pipeline:
    """Trains a model in stages. `stages` are all of them; those that other ranks hold may be None here.

    `optimizer` makes an optimizer for the parameters held here. `replicas[k]` ranks of the group hold stage k, and
    start as the first of them. `data_group`: ranks that hold the same stage of other pipelines, which train on data of
    their own; gradients are averaged over it, too. `tied`: for each parameter that stages share, (stage, name) of its
    copies; unless given, they are found where stages have the very same Parameter. `recompute`: keep only what enters a
    stage, and compute the rest again in the backward pass.
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
        num_ranks = dist.get_world_size(group)
        ties = find_ties(stages) if tied is None else [sorted(tie) for tie in tied]

        def prepare() -> tuple[tuple[Layout, dict[int, nn.Module]], str]:
            check_settings(loss, self.schedule, optimizer, timeout_s=timeout_s)
            is_interleaved = self.schedule.is_interleaved
            layout = Layout.of(
                num_stages=len(stages), num_ranks=num_ranks, replicas=replicas, is_interleaved=is_interleaved
            )
            layout = replace(layout, global_ranks=tuple(dist.get_process_group_ranks(group)))
            self.schedule.check(layout)
            check_ties(self.schedule, ties, layout, is_alone=data_group is None)
            modules = held_stages(stages, layout, self.rank)
            check_copies(ties, modules)
            device_of(modules)
            return (layout, modules), f"{self.schedule} of {len(stages)} stages on {layout.replicas}, tied {ties}"

        self.layout, self.modules = agreed(group, prepare)
        self.device = device_of(self.modules)
        self._own = nn.ModuleList(self.modules.values())
        parameters = [each for each in self._own.parameters() if each.requires_grad]
        self.optimizer = optimizer(parameters) if parameters else None
        self._links = Links(self.layout, group, data_group, device=self.device, timeout_s=timeout_s)
        self._ties = Ties(ties, self.modules, layout=self.layout, rank=self.rank, links=self._links)
        self._averaging = Averaging(parameters, self._links, device=self.device)
        self._links.together(self._start_equal, what="the first weights")
        self._ties.start_equal()
        self._links.traffic.reset()
        self.record = PipelineRecord(self.layout, self.rank, self._links)
        self._driver = self.schedule.driver(
            Setup(
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
        """Train on one minibatch. The loss on the last stage, if this rank works on the minibatch; None elsewhere.

        All ranks call it for every minibatch, in the same order. Only the first stage needs the inputs, only the last
        one the targets: `takes_inputs` and `takes_targets` say which this rank is.
        """
        for is_taken, value, words in (
            (self.takes_inputs, inputs, ("first", "inputs")),
            (self.takes_targets, targets, ("last", "targets")),
        ):
            if is_taken and value is None:
                raise MethodError(
                    f"the {words[0]} stage must be given {words[1]}, but {self.layout.name(self.rank)} got None; "
                    f"call step(inputs, targets) on ranks that hold the first or the last stage"
                )
        if self.takes_inputs:
            as_tuple(inputs, what="inputs")
        self._has_trained = True
        return self._driver.step(inputs, targets)

    def drain(self) -> None:
        """Finish the minibatches under way, so that all stages have seen the same ones. All ranks call it."""
        self._driver.drain()

    def synchronize(self) -> None:
        """Drain, and average buffers (running statistics) over replicas and other pipelines. All ranks call it."""
        self.drain()
        self._average_buffers(self._links.sharing)

    @torch.no_grad()
    def predict(self, inputs: Batch | None = None) -> Any:
        """What the model makes of the inputs, in evaluation mode: on one rank of the last stage; None elsewhere.

        All ranks call it. Replicas take turns, so several calls one after the other are worked on side by side.
        """
        self.drain()
        if self._has_trained:
            self._average_buffers([self._links.replicas])
        training = [module for module in self._own.modules() if module.training]
        self._own.eval()
        try:
            return self._passed_on(inputs)
        finally:
            for module in training:
                module.training = True

    @property
    def takes_inputs(self) -> bool:
        """Whether this rank holds the first stage."""
        return 0 in self.modules

    @property
    def takes_targets(self) -> bool:
        """Whether this rank holds the last stage."""
        return self.layout.num_stages - 1 in self.modules

    @property
    def traffic(self) -> Traffic:
        """What this rank has sent so far, in step() and predict(): a copy."""
        now = copy.copy(self._links.traffic)
        for wire in self._links.sharing:
            now.weight_bytes += wire.counters.sent_bytes
            now.messages += wire.counters.messages
        return now

    @property
    def waited_s(self) -> float:
        """Seconds in which this rank has stood still for what others send, or for what it sent to arrive."""
        return self._links.watch.waited_s

    @property
    def most_versions_held(self) -> int:
        """How many versions of its weights this rank has held at a time, at most."""
        return self._driver.most_versions_held

    def state_dict(self) -> dict[str, Any]:
        """This rank's stages and optimizer, to be saved for each rank. It drains the pipeline: all ranks call it."""
        self.drain()
        return {
            "pipeline": self._description,
            "stages": {stage: copy.deepcopy(module.state_dict()) for stage, module in self.modules.items()},
            "optimizer": None if self.optimizer is None else copy.deepcopy(self.optimizer.state_dict()),
            "driver": self._driver.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from this rank's `state_dict()`."""
        if state["pipeline"] != self._description:
            raise MethodError(
                f"a state must be of the same pipeline and rank ({self._description}), but it is of "
                f"{state['pipeline']}; start as many ranks with the same stages, or load the stages' weights alone"
            )
        self.drain()
        for stage, module in self.modules.items():
            module.load_state_dict(state["stages"][stage])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self._driver.load_state_dict(state["driver"])

    def close(self) -> None:
        """Drain, and end together: a rank that left without would be taken for dead. All ranks call it."""
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

    def _start_equal(self) -> None:
        """Replicas as the first of them, in all pipelines as the first of those."""
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

    def _passed_on(self, inputs: Batch | None) -> Any:
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
