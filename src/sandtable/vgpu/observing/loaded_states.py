"""Loaded states: which states a module takes over, and whether any name in one fits it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sandtable.trace import EventKind
from sandtable.vgpu.observing.events import EventLog, after
from sandtable.vgpu.observing.training import is_called_by_library

__all__ = ["follow_loaded_states"]


def follow_loaded_states(log: EventLog) -> None:
    """Note from now on states that were loaded into a module whose names they do not have."""
    import torch

    def on_loaded(result: Any, module: Any, state: Any, *args: Any, **options: Any) -> None:
        missing: Sequence[str] = getattr(result, "missing_keys", ())
        unexpected: Sequence[str] = getattr(result, "unexpected_keys", ())
        is_foreign = isinstance(state, Mapping) and missing and unexpected and len(unexpected) == len(state)
        if not is_foreign or is_called_by_library():
            return
        log.note(
            EventKind.NOTHING_LOADED,
            module=type(module).__name__,
            num_entries=len(state),
            unexpected=str(unexpected[0]),
            missing=str(missing[0]),
        )

    after(torch.nn.Module, "load_state_dict", on_loaded)
