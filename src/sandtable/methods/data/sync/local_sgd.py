"""Local SGD: ranks train alone for a while, then they meet in the middle.

    after every period-th step:   w_i ← (1/P) · Σ_j w_j        (with Gossip: the mixture with the partners)

At period 1 and with plain SGD that equals bulk-synchronous training. Yu et al. 2018, Stich 2018. `average="before"`
is the published variant in which, at such a step, the weights are averaged first and then take the local gradient
step: w_i ← w̄ - η∇E_i, with the gradient still at w_i. Since the passes do not wait for w̄, uncompressed weights travel
while they compute, from the start of the forward pass until `step` uses them.

`parts` above 1 streams: the model is cut into that many parts, each averaged every period-th step but at different
steps, so that the same bytes flow more evenly (Streaming DiLoCo, Douillard et al. 2025).

The optimizer's own momentum stays with each worker. Cost: that of the exchange, once every `period` steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sandtable.errors import MethodError
from sandtable.methods.data.compression.compression import Compression
from sandtable.methods.data.compression.none import NoCompression
from sandtable.methods.data.exchange.exchange import ExchangeCost
from sandtable.methods.data.sync.averaging import DirectAverage, MovementAverage, WeightAverage
from sandtable.methods.data.sync.gradients import GradientExchange
from sandtable.methods.data.sync.outer import Jump, Outer
from sandtable.methods.data.sync.periods import period_for
from sandtable.methods.data.sync.sync import Sync, SyncDriver, SyncSetup

__all__ = ["LocalSGD"]


@dataclass(frozen=True)
class LocalSGD(Sync):
    """Average weights every `period` steps, "after" or "before" the optimizer's step; `outer`: an outer optimizer."""

    period: int
    average: str = "after"
    outer: Outer | None = None
    parts: int = 1

    def __post_init__(self) -> None:
        if self.period < 1:
            raise MethodError(f"period must be 1 or more steps, but got {self.period}; 1 averages after every step")
        if self.period != int(self.period):
            raise MethodError(f"period must be a whole number of steps, but got {self.period}; try {int(self.period)}")
        if self.average not in ("after", "before"):
            raise MethodError(f'average must be "after" or "before" the step, but got {self.average!r}; try "after"')
        if self.outer is not None and not isinstance(self.outer, Outer):
            raise MethodError(f"outer must be an outer optimizer, but got {self.outer!r}; try Nesterov(lr=0.7)")
        if self.average == "before" and self.outer is not None:
            raise MethodError('an outer optimizer moves weights after the step, but average="before"; try "after"')
        if not 1 <= self.parts <= self.period:
            raise MethodError(
                f"parts ({self.parts}) must be at least 1 and at most the period ({self.period}), "
                f"so that each part has its own step; try {min(max(self.parts, 1), self.period)}"
            )

    @staticmethod
    def period_for(num_steps: int, num_workers: int) -> int:
        """Return the longest period with proven convergence: floor(T^¼ / N^¾), at least 1."""
        return period_for(num_steps, num_workers)

    def averages_beside_passes(self, compression: Compression) -> bool:
        """Return False if compressed: encoding changes the codec's state, which a checkpoint may need in between."""
        return self.average == "before" and compression.is_lossless

    def driver(self, setup: SyncSetup) -> SyncDriver:
        return _Local(self, setup)


class _Local(SyncDriver):
    def __init__(self, settings: LocalSGD, setup: SyncSetup) -> None:
        self._settings = settings
        self._optimizer = setup.optimizer
        self._reaches_all = setup.exchange.reaches_all
        self._queue = setup.queue
        self._num_steps = 0
        self._parts = [
            _average(settings, setup, part, seed=setup.seed + 10_000_000 * number)
            for number, part in enumerate(_cut(setup.parameters, settings.parts))
        ]
        inside = setup.exchange.every_step(setup.wire)
        self._gradients = None if inside is None else GradientExchange(setup, *inside, NoCompression())
        self._under_way: list[WeightAverage] = []
        self._hook: Any = None
        if setup.overlap and self._gradients is None and settings.averages_beside_passes(setup.compression):
            self._hook = setup.model.register_forward_pre_hook(_AtForward(self._start_next_parts))

    @property
    def paused(self) -> bool:
        return self._gradients is not None and self._gradients.paused

    @paused.setter
    def paused(self, value: bool) -> None:
        if self._gradients is not None:
            self._gradients.paused = value

    @property
    def replicas_are_equal(self) -> bool:
        meets_now = self._num_steps % self._settings.period == 0 and self._settings.average == "after"
        return self._num_steps == 0 or (self._reaches_all and meets_now and len(self._parts) == 1)

    def begin(self) -> None:
        self._drop()
        for part in self._parts:
            part.begin()

    def step(self) -> None:
        self._num_steps += 1
        if self._gradients is not None:
            self._gradients.finish()
        if self._settings.average == "before":
            self._exchange_due_parts()
            self._optimizer.step()
        else:
            self._optimizer.step()
            self._exchange_due_parts()

    def _exchange_due_parts(self) -> None:
        self._start_due_parts(self._num_steps)
        under_way, self._under_way = self._under_way, []
        self._queue.wait()
        for part in under_way:
            part.store()

    def _start_due_parts(self, step: int) -> None:
        if self._under_way:
            return
        period, num_parts = self._settings.period, len(self._parts)
        for number, part in enumerate(self._parts):
            if (step + number * period // num_parts) % period == 0:
                self._under_way.append(part)
                self._queue.submit(part.mix)

    def _start_next_parts(self) -> None:
        self._start_due_parts(self._num_steps + 1)

    def _drop(self) -> None:
        """Discard averages in flight: the model's weights have been replaced."""
        self._under_way = []
        self._queue.wait()

    def cost(self) -> ExchangeCost:
        total = ExchangeCost.nothing()
        for part in self._parts:
            total = total + part.cost()
        return total / self._settings.period

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._drop()
        if self._gradients is not None:
            self._gradients.close()

    def state_dict(self) -> dict[str, Any]:
        gradients = {} if self._gradients is None else self._gradients.state_dict()
        return {
            "num_steps": self._num_steps,
            "parts": [part.state_dict() for part in self._parts],
            "gradients": gradients,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._drop()
        self._num_steps = state["num_steps"]
        for part, part_state in zip(self._parts, state["parts"], strict=True):
            part.load_state_dict(part_state)
        if self._gradients is not None:
            self._gradients.load_state_dict(state["gradients"])


class _AtForward:
    """A hook that calls `notify` when a forward pass of the training begins: in training mode, with gradients.

    An evaluation on some of the ranks must not send what the others do not wait for. In a copy of the model, or a saved
    one, it does nothing.
    """

    def __init__(self, notify: Callable[[], None] | None = None) -> None:
        self._notify = notify

    def __call__(self, module: nn.Module, _inputs: object) -> None:
        is_training = module.training and torch.is_grad_enabled()
        # A compiled forward pass cannot send: messages then leave in `step`.
        if self._notify is not None and is_training and not torch.compiler.is_compiling():
            self._notify()

    def __reduce__(self) -> tuple[type["_AtForward"], tuple[()]]:
        return _AtForward, ()


def _average(settings: LocalSGD, setup: SyncSetup, parameters: list[Tensor], *, seed: int) -> WeightAverage:
    """Average by movement where compressed messages reach all ranks, which know the starting point; else directly."""
    outer = settings.outer
    if outer is None and not setup.compression.is_lossless and setup.exchange.reaches_all:
        outer = Jump()
    if outer is None:
        return DirectAverage(setup, parameters, seed=seed)
    return MovementAverage(setup, parameters, outer=outer, optimizer=setup.optimizer, seed=seed)


def _cut(parameters: tuple[Tensor, ...], num_parts: int) -> list[list[Tensor]]:
    """Cut into runs of parameters with about the same number of elements each; none is empty."""
    if num_parts > len(parameters):
        raise MethodError(
            f"parts ({num_parts}) must not be more than the model's parameters ({len(parameters)}); "
            f"try {len(parameters)}"
        )
    total = sum(parameter.numel() for parameter in parameters)
    parts: list[list[Tensor]] = [[] for _ in range(num_parts)]
    seen, number = 0, 0
    for index, parameter in enumerate(parameters):
        is_full = parts[number] and seen * num_parts >= (number + 1) * total
        must_leave = parts[number] and len(parameters) - index <= num_parts - 1 - number
        if number < num_parts - 1 and (is_full or must_leave):
            number += 1
        parts[number].append(parameter)
        seen += parameter.numel()
    return parts
