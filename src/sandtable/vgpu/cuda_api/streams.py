"""Streams and events: torch's own generic ones, under the names a CUDA build gives them."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

__all__ = ["names"]


_CUDA_TYPE = 1
"""c10::DeviceType::CUDA."""


def names(core: ModuleType) -> dict[str, Any]:
    """Return the names of ``torch._C`` that belong to streams and events."""
    return {
        "_CudaStreamBase": _stream_class(core),
        "_CudaEventBase": _event_class(),
        "_cuda_getCurrentStream": core.current_stream,
        "_cuda_getCurrentRawStream": lambda device: core.current_stream(device)[0],
        "_cuda_getDefaultStream": lambda device: (0, device, _CUDA_TYPE),
        "_cuda_getStreamFromExternal": lambda pointer, device: (pointer, device, _CUDA_TYPE),
        "_cuda_setStream": core.set_stream,
    }


def _stream_class(core: ModuleType) -> type:
    import torch._C

    class CudaStreamBase(torch._C.Stream):
        """What ``torch.cuda.Stream`` derives from."""

        _priority: int

        def __new__(
            cls,
            priority: int = 0,
            stream_id: int = 0,
            device_index: int = 0,
            device_type: int = 0,
            stream_ptr: int | None = None,
        ) -> CudaStreamBase:
            if stream_ptr is not None:
                stream_id, device_index, device_type = stream_ptr, core.current_device(), _CUDA_TYPE
            elif not (stream_id or device_index or device_type):
                stream_id, device_index, device_type = core.pool_stream(core.current_device(), priority)
            stream = super().__new__(cls, stream_id=stream_id, device_index=device_index, device_type=device_type)
            stream._priority = min(max(priority, -5), 0)
            return stream

        @property
        def cuda_stream(self) -> int:
            return int(self.stream_id)

        @property
        def priority(self) -> int:
            return int(getattr(self, "_priority", 0))

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return (0, -5)

    return CudaStreamBase


def _event_class() -> type:
    import torch._C

    class CudaEventBase(torch._C.Event):
        """What ``torch.cuda.Event`` derives from."""

        _is_timed: bool
        _recorded_at: float | None

        def __new__(
            cls,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> CudaEventBase:
            event = super().__new__(cls, device="cuda", enable_timing=enable_timing, blocking=blocking)
            event._is_timed = enable_timing
            event._recorded_at = None
            return event

        def record(self, stream: Any = None) -> None:
            super().record(stream)
            self._recorded_at = time.perf_counter()

        def elapsed_time(self, end_event: Any) -> float:
            """Return milliseconds by the host's clock, so that rates are finite: the card has no clock."""
            if not (self._is_timed and end_event._is_timed):
                raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
            if self._recorded_at is None or end_event._recorded_at is None:
                raise RuntimeError("Both events must be recorded before calculating elapsed time.")
            return max(1e3 * float(end_event._recorded_at - self._recorded_at), 1e-3)

        @property
        def cuda_event(self) -> int:
            return int(self.event_id)

    return CudaEventBase
