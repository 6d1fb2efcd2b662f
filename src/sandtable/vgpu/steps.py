"""Steps: where a training step ends, which operators are the optimizer's, and when the capture may stop.

A step ends where the parameters have been updated, by the first of these that the script has:

- marks: `sandtable.step()`, or the function named by `--step-marker`;
- optimizers of torch: a call of `step`, whatever it calls inside. Those that step inside backward, parameter by
  parameter, are one. Of several, the one that updates least often sets the pace (`pace.py`);
- updates that a framework reports, where no optimizer of torch stepped in them;
- anything that writes parameters after a backward pass (csrc/updates.h).

Each of these leaves a row at every update; which rows end a step is decided when the capture ends (`step_rows.py`).
After the last wanted step the capture continues through what closes the step (logging, schedulers) and stops at the
next forward pass; at a mark it stops at once. There the script may be followed further, without records
(`following.py`). Ranks that talk over their own sockets continue to the end of the script, because others would wait
for one that stopped.
"""

from __future__ import annotations

import functools
import threading
import time
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from sandtable.step_marker import STEP_EVENT
from sandtable.trace import TO_THE_END
from sandtable.vgpu.marked_function import MarkedFunction
from sandtable.vgpu.output import silence_output
from sandtable.vgpu.pace import Paces
from sandtable.vgpu.stop import StopCapture

__all__ = ["StepCounter"]

_MARK, _IN_BACKWARD, _BY_FRAMEWORK, _FIRST_OPTIMIZER = 0, 1, 2, 3
"""The numbers of updaters; those of updates without an optimizer of torch's come from the core."""


class StepCounter:
    """Counts steps, by marks or updates, and stops the capture after the last one wanted.

    `on_step` is called with the number of each step, as far as it is known while the script runs. In processes that the
    script forked from the rank's (`is_forked`), such as workers of a data loader, nothing stops.
    """

    def __init__(
        self,
        core: ModuleType,
        *,
        wanted: int,
        marker: str = "",
        on_step: Callable[[int], None],
        is_forked: Callable[[], bool],
    ) -> None:
        self._core = core
        self._is_forked = is_forked
        self._wanted = wanted
        self._marker = marker
        self._on_step = on_step
        self._num_steps = 0
        self._paces = Paces()
        self._num_marks = 0
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._updating: dict[frozenset[int], int] = {}
        """The numbers of optimizers by what they update."""
        self._num_living: Counter[int] = Counter()
        self._num_optimizers = 0
        self._local = _ThreadState()
        self._goes_on = False
        self._watches_forward = False
        self._deadline: float | None = None
        self._ends: deque[float] = deque([time.process_time()], maxlen=2)
        """When the last two steps ended, on the clock of this process: others may compute on the same machine."""
        self.on_enough: Callable[[float], float] = lambda step_seconds: 0.0
        """Called with the duration of a step after the last one wanted; returns until when to follow the script."""
        self.on_backward: tuple[Callable[[Sequence[Any]], None], Callable[[], None]] = (_nothing, _nothing)
        """Called when a backward pass begins, with what it begins at, and when it ends."""

    @property
    def num_updates(self) -> int:
        return self._paces.num_updates

    @property
    def is_compiling(self) -> bool:
        return bool(self._core.is_compiling())

    def install(self) -> None:
        """Watch marks, optimizers and backward passes of this process."""
        from torch.autograd.variable import Variable
        from torch.optim import Optimizer
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._core.watch_audit_events([STEP_EVENT], lambda event, arguments: self.mark())
        if self._marker and not (function := MarkedFunction(self._marker)).reports_itself:
            self._core.watch_returns(function.is_in, self.mark)
        Optimizer.__init__ = self._admitting(Optimizer.__init__)  # type: ignore[method-assign]
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)
        Variable._execution_engine = _watched_engine(self)
        self._core.watch_parameters(True)

    def go_on(self) -> None:
        """Do not stop before the script ends."""
        if not self._goes_on:
            self._goes_on = True
            self._core.note(TO_THE_END, "ranks that talk over sockets of their own run to the end of the script")

    def mark(self) -> None:
        """End a step here; from the first mark on, nothing else does."""
        # From Python 3.12 on, a function that the stop ended is reported to return.
        self._stop_if(self._num_marks >= self._wanted)
        if self._deadline is not None:
            return
        self._num_marks += 1
        self._ends.append(time.process_time())
        self._core.end_update(_MARK)
        self._on_step(self._num_marks)
        self._stop_if(self._num_marks >= self._wanted)

    def decide(self) -> int | None:
        """Return the number of the updater whose rows end the steps, when the script has ended; None: nobody's."""
        self._take_script_update()
        if self._num_marks or self._marker:
            return _MARK
        return self._paces.pacemaker()

    def describe_none(self) -> str:
        """Return in words what the script did, if it made no step."""
        if self._marker:
            return f"the step marker {self._marker} was never reached"
        num_passes = self._core.num_backwards()
        passes = (
            "no backward pass ran"
            if not num_passes
            else f"{_plural(num_passes, 'backward pass', 'backward passes')} ran"
        )
        if num_passes and not self._core.num_operators():
            return f"{passes}, but nothing ran on the GPU"
        if not self._num_optimizers:
            return f"{passes}, and nothing updated the parameters"
        made = _plural(self._num_optimizers, "optimizer was made, but it", "optimizers were made, but none of them")
        return f"{passes}; {made} never stepped" if self._num_optimizers == 1 else f"{passes}; {made} stepped"

    # ---- optimizers of torch ----

    def _admitting(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(optimizer: Any, *args: Any, **options: Any) -> None:
            original(optimizer, *args, **options)
            self._number(optimizer)

        return init

    def _number(self, optimizer: Any) -> int:
        """Return the number of an optimizer; from the first one on, only optimizers count."""
        if optimizer not in self._numbers:
            self._core.watch_parameters(False)
            updated = frozenset(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
            number = self._updating.get(updated)
            if number is not None and updated and self._paces.has_updated(number):
                self._paces.resume(number)  # a script that makes its optimizer anew goes on with it
            else:
                number = self._updating[updated] = _FIRST_OPTIMIZER + self._num_optimizers
                self._num_optimizers += 1
                self._paces.admit(number)
            self._numbers[optimizer] = number
            self._num_living[number] += 1
            weakref.finalize(optimizer, self._release, number).atexit = False
        return self._numbers[optimizer]

    def _release(self, number: int) -> None:
        self._num_living[number] -= 1
        if not self._num_living[number]:
            self._paces.release(number)

    def _before(self, optimizer: Any, args: Any, options: Any) -> Any:
        self._stop_if(self._is_enough)
        local = self._local
        if optimizer in local.stepping:  # its last step raised
            del local.stepping[local.stepping.index(optimizer) :]
        local.stepping.append(optimizer)
        self._core.set_optimizer(True)
        own, *others = args
        return (own, *map(self._outside, others)), {name: self._outside(value) for name, value in options.items()}

    def _outside(self, argument: Any) -> Any:
        """Return a closure, which computes the loss, as one whose work is not the optimizer's."""
        if not callable(argument):
            return argument

        @functools.wraps(argument, updated=())
        def closure(*args: Any, **options: Any) -> Any:
            self._core.set_optimizer(False)
            try:
                return argument(*args, **options)
            finally:
                self._core.set_optimizer(True)

        return closure

    def _after(self, optimizer: Any, args: Any, options: Any) -> None:
        local = self._local
        local.stepping.pop()
        number = self._number(optimizer)
        if local.stepping or local.num_backwards:
            self._paces.dismiss(number)  # a part of the outer optimizer, or of the backward pass
            local.updates_in_backward |= not local.stepping
            self._core.set_optimizer(bool(local.stepping or local.num_around))
            return
        self._core.set_optimizer(local.num_around > 0)
        if local.num_around:
            local.updates_around[number] = None  # ZeRO steps once per group of parameters: together they are one update
        else:
            self._end_update(number)

    @contextmanager
    def around_optimizer(self) -> Iterator[None]:
        """Count all work inside as the optimizer's, and all its steps as one: what a framework does around it."""
        local = self._local
        local.num_around += 1
        self._core.set_optimizer(True)
        try:
            yield
        finally:
            local.num_around -= 1
            self._core.set_optimizer(bool(local.stepping or local.num_around))
        if not local.num_around:
            numbers, local.updates_around = local.updates_around, {}
            if local.is_updated_around and not numbers:
                self._paces.dismiss_unused()  # optimizers that the framework keeps, and whose states it updates itself
                numbers[_BY_FRAMEWORK] = None
            local.is_updated_around = False
            for number in numbers:
                self._end_update(number)

    def note_update(self) -> None:
        """Note that a framework has updated the parameters: a step, if none of torch's optimizers made it."""
        self._local.is_updated_around = True

    # ---- backward passes ----

    def begin_backward(self, roots: Any) -> None:
        """Note that a backward pass begins."""
        import torch

        self._take_script_update()
        self._stop_if(self._is_enough)
        self._local.num_backwards += 1
        self.on_backward[0](roots)
        for leaf in self._core.begin_backward([root for root in roots if isinstance(root, torch.Tensor)]):
            if hasattr(leaf, "__tensor_flatten__"):
                for name in leaf.__tensor_flatten__()[0]:
                    self._core.mark_parameter(getattr(leaf, name))

    def end_backward(self) -> None:
        """Note that a backward pass ends, and with it the update of optimizers that stepped inside."""
        local = self._local
        local.num_backwards -= 1
        self.on_backward[1]()
        if local.updates_in_backward and not local.num_backwards:
            local.updates_in_backward = False
            self._end_update(_IN_BACKWARD)

    def _take_script_update(self) -> None:
        number = self._core.take_update()
        if number:
            self._count(number)

    # ---- counting and stopping ----

    def count_replay(self, number: int) -> None:
        """Count an update that the replay of a CUDA graph has repeated."""
        self._stop_if(self._is_enough)
        self._count(number)

    def _end_update(self, number: int) -> None:
        self._core.end_update(number)
        if self._core.is_capturing():  # a CUDA graph: its replays update
            return
        self._count(number)

    def _count(self, number: int) -> None:
        if self._deadline is not None:
            return
        self._paces.count(number)
        if self._marker or self._num_marks:
            return
        if self._paces.num_steps > self._num_steps:
            self._num_steps = self._paces.num_steps
            self._ends.append(time.process_time())
            self._on_step(self._num_steps)
        if not self._watches_forward and self._num_steps >= self._wanted:
            from torch.nn.modules.module import register_module_forward_pre_hook

            self._watches_forward = True
            warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
            register_module_forward_pre_hook(lambda module, inputs: self._stop_if(self._is_enough))

    @property
    def _is_enough(self) -> bool:
        return self._watches_forward and not self._num_marks

    def stop_if_done(self) -> None:
        """End the script if all wanted steps have been made."""
        self._stop_if(self._is_enough)

    def _stop_if(self, is_enough: bool) -> None:
        if not is_enough or self._goes_on or self._is_forked():
            return
        if threading.current_thread() is not threading.main_thread():
            return
        if self._deadline is None:
            silence_output()
            self._deadline = self.on_enough(time.process_time() - self._ends[0])
        if time.monotonic() >= self._deadline:
            raise StopCapture("steps")


class _ThreadState(threading.local):
    """What a thread is doing: the optimizers whose `step` it is in, what is around them, and its backward passes."""

    def __init__(self) -> None:
        self.stepping: list[Any] = []
        self.num_around = 0
        self.updates_around: dict[int, None] = {}
        self.is_updated_around = False
        self.num_backwards = 0
        self.updates_in_backward = False


def _watched_engine(counter: StepCounter) -> Any:
    """Return torch's autograd engine, reporting when a backward pass begins and ends."""
    from torch._C import _ImperativeEngine

    class WatchedEngine(_ImperativeEngine):
        def run_backward(self, tensors: Any, *args: Any, **options: Any) -> Any:
            if counter.is_compiling:  # the compiler traces a backward pass
                return super().run_backward(tensors, *args, **options)
            counter.begin_backward(tensors)
            try:
                return super().run_backward(tensors, *args, **options)
            finally:
                counter.end_backward()

    return WatchedEngine()


def _nothing(*args: Any) -> None:
    """Do nothing."""


def _plural(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
