"""Restored states: what of a checkpoint gets back to where it came from, and random states that ranks take over."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from sandtable.trace import EventKind
from sandtable.vgpu.observing.events import EventLog, after, before
from sandtable.vgpu.observing.training import is_called_by_library

__all__ = ["follow_restored"]

_MOST_DEPTH = 3
_MOST_STATES = 64
_KEYS = {"optimizer": {"state", "param_groups"}, "scheduler": {"last_epoch", "_step_count"}}
"""The entries by which the state of an optimizer, or of a scheduler, is known."""


def follow_restored(log: EventLog) -> None:
    """Note from now on which states files hold that the script reads, and which of them are loaded."""
    import torch
    from torch.optim import Optimizer, lr_scheduler

    def on_load(result: Any, path: Any = None, *args: Any, **options: Any) -> None:
        kinds = _kinds_in(result)
        if isinstance(path, str | os.PathLike) and kinds and not is_called_by_library():
            log.note(EventKind.LOADED, path=os.path.realpath(os.fsdecode(path)), holds=sorted(kinds))

    def noting(what: str) -> Callable[..., object]:
        return lambda *args, **options: log.note(EventKind.RESTORED, what=what)

    after(torch, "load", on_load)
    before(torch.nn.Module, "load_state_dict", noting("model"))
    before(Optimizer, "load_state_dict", noting("optimizer"))
    for kind in vars(lr_scheduler).values():
        if isinstance(kind, type) and "load_state_dict" in vars(kind):
            before(kind, "load_state_dict", noting("scheduler"))
    _follow_random_states(log)


def _kinds_in(thing: Any, depth: int = 0) -> set[str]:
    """Return which kinds of states a checkpoint holds."""
    if not isinstance(thing, Mapping) or depth > _MOST_DEPTH:
        return set()
    kinds = {kind for kind, keys in _KEYS.items() if keys <= thing.keys()}
    return kinds or {kind for part in list(thing.values())[:_MOST_STATES] for kind in _kinds_in(part, depth + 1)}


def _follow_random_states(log: EventLog) -> None:
    import torch

    seen = 0

    def noting(how: str, state_now: Callable[[], Any]) -> Callable[..., None]:
        def notice(state: Any, *args: Any, **options: Any) -> None:
            nonlocal seen
            if seen < _MOST_STATES and isinstance(state, torch.Tensor) and not is_called_by_library():
                seen += 1
                log.note(EventKind.RANDOM_STATE, how=how, old=_digest(state_now()), new=_digest(state))

        return notice

    before(torch, "set_rng_state", noting("torch.set_rng_state", torch.get_rng_state))
    before(torch.cuda, "set_rng_state", noting("torch.cuda.set_rng_state", lambda: torch.cuda.get_rng_state()))


def _digest(state: Any) -> int:
    return zlib.crc32(state.cpu().numpy().tobytes())
