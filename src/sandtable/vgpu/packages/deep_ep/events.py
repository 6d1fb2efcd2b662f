"""Events of DeepEP: what a stream waits for after an exchange that was left to run."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["EventHandle", "EventOverlap"]


class EventHandle:
    """The moment up to which the current stream has got."""

    def __init__(self) -> None:
        self._event = torch.cuda.current_stream().record_event()

    def current_stream_wait(self) -> None:
        torch.cuda.current_stream().wait_event(self._event)


class EventOverlap:
    """An exchange, or a moment, that the current stream can wait for."""

    def __init__(self, event: Any = None, extra_tensors: Any = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        if self.event is not None:
            self.event.current_stream_wait()

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_: Any) -> None:
        self.current_stream_wait()
