"""The watcher: what the files for packages report about a framework's own work."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

__all__ = ["Watcher", "within"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Takes note of reductions, phases, missing packages and operators.

    `on_reduction` is called with parameters whose gradients are reduced together, in their order, and whether the
    backward pass is under way. Work inside `around_optimizer()` is the optimizer's, and inside `after_backward()` the
    backward pass's, though torch's own optimizer and autograd do not run; `on_update` is called inside the former when
    the parameters have been updated, by whatever optimizer. `on_missing` is called with the name of a package that is
    not installed, when a replacement is imported. `on_unbuilt` is called with a namespace and the schemas of operators
    in it, which sources declare that are not built.
    """

    on_reduction: Callable[[Iterable[Any], bool], None]
    around_optimizer: Callable[[], AbstractContextManager[None]]
    after_backward: Callable[[], AbstractContextManager[None]]
    on_update: Callable[[], None]
    on_missing: Callable[[str], None]
    on_unbuilt: Callable[[str, Iterable[str]], None]


def within(phase: Callable[[], AbstractContextManager[None]], method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method, whose work belongs to the phase."""

    @functools.wraps(method)
    def run(*args: Any, **options: Any) -> Any:
        with phase():
            return method(*args, **options)

    return run
