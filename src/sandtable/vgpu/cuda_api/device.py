# ruff: noqa: N815 - the names are CUDA's
"""Device management and properties."""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sandtable.cluster import Device

__all__ = ["CudaDeviceProperties", "describe", "forget_init", "fork_unnoticed", "names", "stay_initialised"]


@dataclass(frozen=True, kw_only=True)
class CudaDeviceProperties:
    """What ``torch.cuda.get_device_properties`` returns."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    max_threads_per_multi_processor: int
    warp_size: int
    regs_per_multiprocessor: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    L2_cache_size: int
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    max_threads_per_block: int = 1024
    clock_rate: int = 0
    memory_clock_rate: int = 0
    memory_bus_width: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
    gcnArchName: str = ""
    uuid: uuid.UUID


class _Cards:
    """The cards of this node, as the catalogue describes them; set once per process."""

    def __init__(self) -> None:
        self.properties: list[CudaDeviceProperties] = []
        self.configure: Callable[[int], None] = lambda count: None
        self.is_initialised = False
        self.in_bad_fork = False
        os.register_at_fork(after_in_child=self._mark_fork)
        self.sync_debug_mode = 0

    def _mark_fork(self) -> None:
        self.in_bad_fork = self.in_bad_fork or self.is_initialised


_cards = _Cards()


def describe(device: Device, *, count: int, configure: Callable[[int], None]) -> None:
    """Set which device the node's ``count`` cards are; ``configure`` changes how many of them there are."""
    _cards.configure = configure
    _cards.properties = [
        CudaDeviceProperties(
            name=device.name,
            major=device.major,
            minor=device.minor,
            total_memory=device.memory_bytes,
            multi_processor_count=device.num_sms,
            max_threads_per_multi_processor=device.max_threads_per_sm,
            warp_size=device.warp_size,
            regs_per_multiprocessor=device.registers_per_sm,
            shared_memory_per_block=device.shared_memory_per_block_bytes,
            shared_memory_per_block_optin=device.shared_memory_per_block_optin_bytes,
            shared_memory_per_multiprocessor=device.shared_memory_per_sm_bytes,
            L2_cache_size=device.l2_bytes,
            pci_bus_id=index + 1,
            uuid=uuid.UUID(int=index + 1),
        )
        for index in range(count)
    ]


def forget_init() -> None:
    """Mark CUDA as not initialised in this process."""
    _cards.is_initialised = _cards.in_bad_fork = False


def stay_initialised() -> None:
    """Have a process use CUDA that was forked from one which had initialised it."""
    _cards.in_bad_fork = False


def fork_unnoticed() -> int:
    """Fork a process that may use CUDA if this one may; return its number, or 0 in it."""
    was_bad = _cards.in_bad_fork
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a process with threads is forked
        process = os.fork()
    if process == 0:
        _cards.in_bad_fork = was_bad
    return process


def _initialise() -> None:
    """Initialise CUDA, as a CUDA build does when it is asked for a device."""
    import torch

    torch.cuda.init()  # type: ignore[no-untyped-call]


def names(core: ModuleType) -> dict[str, Any]:
    """Return the names of ``torch._C`` that belong to device management."""
    return {
        **_device_names(core),
        "_has_cuda": True,
        "_has_magma": True,
        "_CudaDeviceProperties": CudaDeviceProperties,
        "_cuda_isInBadFork": lambda: _cards.in_bad_fork,
        "_cuda_getDeviceCount": lambda: _device_count(core),
        "_cuda_synchronize": core.synchronize,
        "_cuda_canDeviceAccessPeer": lambda device, peer: True,
        "_cuda_hasPrimaryContext": lambda device: _cards.is_initialised,
        "_cuda_getArchFlags": _arch_flags,
        "_cuda_getCompiledVersion": lambda: 13000,
        "_cuda_getDriverVersion": lambda: 13000,
        "_cuda_sleep": _accept,
        "_cuda_ipc_collect": _accept,
        "_cuda_lock_mutex": _accept,
        "_cuda_unlock_mutex": _accept,
        "_cuda_set_sync_debug_mode": _set_sync_debug_mode,
        "_cuda_get_sync_debug_mode": lambda: _cards.sync_debug_mode,
    }


def _device_names(core: ModuleType) -> dict[str, Any]:
    """Return the functions that initialise CUDA and choose the current device."""

    def init() -> None:
        import torch

        count = _device_count(core)
        _cards.is_initialised = True
        core.register_fork_handler()
        torch.cuda.default_generators = tuple(core.default_generator(index) for index in range(count))
        torch.cuda._get_device_properties = lambda index: _cards.properties[int(index)]  # type: ignore[attr-defined]

    def get_device() -> int:
        _initialise()
        index: int = core.current_device()
        return index

    def set_device(index: int) -> None:
        _initialise()
        core.set_device(index)

    def exchange_device(index: int) -> int:
        before = get_device()
        core.set_device(index)
        return before

    def maybe_exchange_device(index: int) -> int:  # a function of its own: Dynamo has a handler for each
        return exchange_device(index)

    return {
        "_cuda_init": init,
        "_cuda_getDevice": get_device,
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": exchange_device,
        "_cuda_maybeExchangeDevice": maybe_exchange_device,
    }


def _device_count(core: ModuleType) -> int:
    """Return how many cards there are; the first use of CUDA decides which of them the script lets itself see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not _cards.is_initialised:
        seen = len([index for index in visible.split(",") if index.strip() not in ("", "-1")])
        if 0 < seen < core.device_count():
            _cards.configure(seen)
    count: int = core.device_count()
    return count


def _arch_flags() -> str:
    known = {"sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"}
    known |= {f"sm_{card.major}{card.minor}" for card in _cards.properties}
    return " ".join(sorted(known, key=lambda flag: int(flag[3:])))


def _set_sync_debug_mode(mode: int) -> None:
    _cards.sync_debug_mode = mode


def _accept(*_: object) -> None:
    return None
