"""The driver that Triton asks about the card: it answers for the rehearsed one, and can launch nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["VirtualDriver", "bench_once"]

_WARP_SIZE = 32


class GPUTarget(NamedTuple):
    """What Triton compiles for, where Triton's own class is not to be had."""

    backend: str
    arch: int | str
    warp_size: int


class _DeviceQueries:
    """The part of NVIDIA's driver that kernels' launchers ask, `driver.active.utils`."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        import torch

        card: Any = torch.cuda.get_device_properties(device)
        return {
            "max_shared_mem": card.shared_memory_per_block_optin,
            "max_num_regs": card.regs_per_multiprocessor,
            "multiprocessor_count": card.multi_processor_count,
            "warpSize": card.warp_size,
            "sm_clock_rate": card.clock_rate,
            "mem_clock_rate": card.memory_clock_rate,
            "mem_bus_width": card.memory_bus_width,
        }


class VirtualDriver:
    """What `triton.runtime.driver.active` is in a rehearsal."""

    def __init__(self, target: Callable[..., Any] = GPUTarget) -> None:
        self.utils = _DeviceQueries()
        self._target = target

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        major, minor = self.get_device_capability()
        return self._target("cuda", 10 * major + minor, _WARP_SIZE)

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        import torch

        return torch.cuda.get_device_capability(device)

    def get_current_device(self) -> int:
        import torch

        return torch.cuda.current_device()

    def set_current_device(self, device: int) -> None:
        import torch

        torch.cuda.set_device(device)

    def get_current_stream(self, device: int | None = None) -> int:
        import torch

        return int(torch.cuda.current_stream(device).cuda_stream)

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", self.get_current_device())

    def get_benchmarker(self) -> Callable[..., Any]:
        return bench_once

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(0, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: Any) -> None:
        """Accept the request: there is no cache."""


def bench_once(function: Callable[[], Any], *_: Any, quantiles: Sequence[float] | None = None, **__: Any) -> Any:
    """Call the function once, in place of measuring it: no kernel takes less time than another here."""
    function()
    return 1.0 if quantiles is None else [1.0] * len(quantiles)
