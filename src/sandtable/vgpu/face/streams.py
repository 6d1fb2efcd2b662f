"""Streams and events: torch's own generic ones, under the names a CUDA build gives them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

__all__ = ["names"]


def names(core: ModuleType) -> dict[str, Any]:
    """The names of ``torch._C`` that belong to streams and events."""
    import torch._C

    cuda_type = 1  # c10::DeviceType::CUDA

    class CudaStreamBase(torch._C.Stream):
        """What ``torch.cuda.Stream`` derives from."""

        _priority: int

        def __new__(
            cls,
            priority: int = 0,
            stream_id: int = 0,
            device_index: int = 0,
            device_type: int = 0,
            stream_ptr: int = 0,
        ) -> CudaStreamBase:
            if not (stream_id or device_index or device_type):
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

    class CudaEventBase(torch._C.Event):
        """What ``torch.cuda.Event`` derives from."""

        def __new__(
            cls,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> CudaEventBase:
            return super().__new__(cls, device="cuda", enable_timing=enable_timing, blocking=blocking)

        @property
        def cuda_event(self) -> int:
            return int(self.event_id)

    def default_stream(device: int) -> tuple[int, int, int]:
        return (0, device, cuda_type)

    return {
        "_CudaStreamBase": CudaStreamBase,
        "_CudaEventBase": CudaEventBase,
        "_cuda_getCurrentStream": core.current_stream,
        "_cuda_getCurrentRawStream": lambda device: core.current_stream(device)[0],
        "_cuda_getDefaultStream": default_stream,
        "_cuda_getStreamFromExternal": lambda pointer, device: (pointer, device, cuda_type),
        "_cuda_setStream": core.set_stream,
    }
