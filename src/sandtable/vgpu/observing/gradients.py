"""Gradients: which of them an update uses, and what happened to each since the update before.

Each gradient has a state that costs nothing to read: whether it exists, which tensor it is, and how often that was
written. States are compared where backward passes and updates begin and end, so what a script does by hand
(`parameter.grad = None`) is seen, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["GradientLog"]

_MOST_PASSES = 64
_MOST_UPDATES = 8

_State = tuple[int, int, int] | None


class GradientLog:
    """Follows the gradients of all watched parameters from the first update on."""

    def __init__(self, living: Callable[[], Sequence[Any]]) -> None:
        self._living = living
        self._states: list[_State] = []
        self._is_carried: list[bool] = []
        """Whether the gradient holds what an update used, and nobody cleared or changed it since."""
        self._is_written: list[bool] = []
        """Whether a backward pass has written it since the last update of its parameter."""
        self._discarded: set[int] = set()
        """Parameters whose gradients were written and cleared since the last update of any."""
        self._cleared: list[_State] = []
        """What `zero_grad` left behind, until the next backward pass."""
        self._num_passes = 0
        self._num_updates = 0

    @property
    def _is_following(self) -> bool:
        return bool(self._states) and self._num_passes <= _MOST_PASSES and self._num_updates <= _MOST_UPDATES

    def begin_backward(self) -> None:
        """Compare with what the last pass or update left."""
        self._num_passes += 1
        self._cleared = []
        if self._is_following:
            self._compare()

    def after_clearing(self) -> None:
        """Note what `zero_grad` has left."""
        if self._is_following:
            self._cleared = self._read()

    def end_backward(self) -> None:
        """Note which gradients the pass has written."""
        if not self._is_following:
            return
        states = self._read()
        for index, (old, new) in enumerate(zip(self._states, states, strict=True)):
            if new != old:
                self._is_written[index] = True
                self._is_carried[index] &= new is not None
        self._states = states

    def before_update(self, held: Sequence[int]) -> dict[str, Any]:
        """Return what an update finds: facts about the parameters that its optimizer holds."""
        facts: dict[str, Any] = {"num_gradients": 0}
        if self._num_updates > _MOST_UPDATES:
            return facts
        if not self._states:
            self._start()
        states = self._read()
        facts["num_gradients"] = sum(states[index] is not None for index in held if index >= 0)
        facts["carried"] = [
            index
            for index in held
            if index >= 0 and self._is_carried[index] and self._is_written[index] and states[index] is not None
        ]
        facts["lost"] = [index for index in held if index >= 0 and self._is_written[index] and states[index] is None]
        facts["zeroed"] = [
            index
            for index in held
            if index >= 0 and self._cleared and states[index] is not None and self._cleared[index] == states[index]
        ]
        # (with `zero_grad` behind the last pass, the script has put its own gradients there: it combines several)
        facts["discarded"] = [] if self._cleared else sorted(self._discarded.intersection(held))
        facts["num_changed"] = sum(states[index] != self._states[index] for index in held if index >= 0)
        self._drop_cleared(states)
        self._states = states
        return facts

    def after_update(self, held: Sequence[int], facts: dict[str, Any]) -> None:
        """Note what the update left."""
        self._num_updates += 1
        if not self._states:
            return
        states = self._read()
        facts["num_gradients"] = max(
            facts["num_gradients"], sum(states[index] is not None for index in held if index >= 0)
        )
        for index in held:
            if index >= 0:
                self._is_carried[index] = states[index] is not None and states[index] == self._states[index]
                self._is_written[index] = False
        self._drop_cleared(states)
        self._states = states
        self._discarded.clear()

    def with_gradients(self) -> list[int]:
        """Return the parameters that have a gradient."""
        return [index for index, state in enumerate(self._read()) if state is not None]

    def _start(self) -> None:
        self._states = self._read()
        self._is_carried = [False] * len(self._states)
        self._is_written = [False] * len(self._states)

    def _drop_cleared(self, states: Sequence[_State]) -> None:
        """Note which gradients another optimizer's script has cleared since states were last compared."""
        for index, state in enumerate(states):
            if state is None:
                self._is_carried[index] = False

    def _compare(self) -> None:
        states = self._read()
        for index, (old, new) in enumerate(zip(self._states, states, strict=True)):
            if new != old:
                self._is_carried[index] = False
                if self._is_written[index] and new is None:
                    self._discarded.add(index)
                    self._is_written[index] = False
        self._states = states

    def _read(self) -> list[_State]:
        return [None if tensor is None else _state(tensor.grad) for tensor in self._living()]


def _state(gradient: Any) -> _State:
    if gradient is None:
        return None
    local = getattr(gradient, "_local_tensor", gradient)
    return id(gradient), int(gradient._version), int(local._version)
