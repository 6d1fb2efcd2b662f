"""pynvml (nvidia-ml-py): NVIDIA's management library, which frameworks ask about the cards of the node.

It answers for the rehearsed cards, whether the package is installed or not. Sensors read 1 (power 1 W, 1 degree, 1 %,
1 MHz), as unknown values do on a virtual GPU. A function that is not here raises `NVMLError_NotSupported`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from sandtable.vgpu.node_queries import bus_id, card_uuid
from sandtable.vgpu.nvidia_smi import DRIVER_VERSION
from sandtable.vgpu.packages.package import Package
from sandtable.vgpu.packages.watcher import Watcher
from sandtable.vgpu.preload import loaded_core

__all__ = ["package"]

_VERSION = "13.580.65"
_NUM_NVLINKS = 18
_ERRORS = ("Uninitialized", "InvalidArgument", "NotSupported", "NoPermission", "NotFound", "DriverNotLoaded",
           "LibraryNotFound", "FunctionNotFound", "GpuIsLost", "Unknown", "Timeout")  # fmt: skip
_CONSTANTS = {
    "NVML_SUCCESS": 0,
    "NVML_FEATURE_DISABLED": 0,
    "NVML_FEATURE_ENABLED": 1,
    "NVML_TEMPERATURE_GPU": 0,
    "NVML_CLOCK_GRAPHICS": 0,
    "NVML_CLOCK_SM": 1,
    "NVML_CLOCK_MEM": 2,
    "NVML_CLOCK_VIDEO": 3,
    "NVML_P2P_CAPS_INDEX_READ": 0,
    "NVML_P2P_CAPS_INDEX_NVLINK": 2,
    "NVML_P2P_STATUS_OK": 0,
    "NVML_NVLINK_MAX_LINKS": _NUM_NVLINKS,
    "NVML_AFFINITY_SCOPE_NODE": 0,
    "NVML_AFFINITY_SCOPE_SOCKET": 1,
    "NVML_TOPOLOGY_INTERNAL": 0,
    "NVML_TOPOLOGY_SINGLE": 10,
    "NVML_TOPOLOGY_NODE": 40,
    "NVML_VALUE_NOT_AVAILABLE": -1,
}


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    return Package(
        name="pynvml",
        adaptations={"pynvml": lambda module: vars(module).update(_functions()), "torch.cuda": _find_late},
        missing={"pynvml": _fill},
        version=_VERSION,
    )


def _find_late(cuda: ModuleType) -> None:
    """Have torch look for the package when it is asked for a sensor: it looked before there was one to be found."""
    original: Callable[..., Any] = cuda._get_pynvml_handler

    def get_handler(device: Any = None) -> Any:
        cuda.pynvml = importlib.import_module("pynvml")  # type: ignore[attr-defined]
        cuda._HAS_PYNVML = True  # type: ignore[attr-defined]
        return original(device)

    cuda._get_pynvml_handler = get_handler  # type: ignore[attr-defined]


def _fill(module: ModuleType) -> None:
    error = type("NVMLError", (Exception,), {"value": 3})
    errors = {f"NVMLError_{name}": type(f"NVMLError_{name}", (error,), {}) for name in _ERRORS}

    def find(name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(f"module 'pynvml' has no attribute {name!r}")

        def refuse(*_: Any, **__: Any) -> Any:
            raise errors["NVMLError_NotSupported"](f"{name} is not answered in a rehearsal")

        return refuse

    vars(module).update(NVMLError=error, **errors, **_CONSTANTS, **_functions(), __getattr__=find)


def _functions() -> dict[str, Callable[..., Any]]:
    """Return the functions that answer; a card's handle is its index."""
    return {**_system_functions(), **_card_functions(), **_sensor_functions(), **_link_functions()}


def _system_functions() -> dict[str, Callable[..., Any]]:
    return {
        "nvmlInit": _accept,
        "nvmlInitWithFlags": _accept,
        "nvmlShutdown": _accept,
        "nvmlSystemGetDriverVersion": lambda: DRIVER_VERSION,
        "nvmlSystemGetNVMLVersion": lambda: _VERSION,
        "nvmlSystemGetCudaDriverVersion": lambda: 13000,
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
        "nvmlDeviceGetCount": lambda: loaded_core().device_count(),
        "nvmlDeviceGetHandleByIndex": _handle,
        "nvmlDeviceGetHandleByUUID": lambda uuid: _handle(int(_text(uuid).rpartition("-")[2], 16) - 1),
        "nvmlDeviceGetHandleByPciBusId": lambda bus: _handle(int(_text(bus).split(":")[1], 16) - 1),
    }


def _card_functions() -> dict[str, Callable[..., Any]]:
    return {
        "nvmlDeviceGetIndex": int,
        "nvmlDeviceGetMinorNumber": int,
        "nvmlDeviceGetName": lambda card: _properties(card).name,
        "nvmlDeviceGetUUID": card_uuid,
        "nvmlDeviceGetSerial": card_uuid,
        "nvmlDeviceGetPciInfo": lambda card: SimpleNamespace(
            busId=bus_id(card), busIdLegacy=bus_id(card), domain=0, bus=card + 1, device=0
        ),
        "nvmlDeviceGetMemoryInfo": lambda card, version=None: _memory(card),
        "nvmlDeviceGetCudaComputeCapability": lambda card: (_properties(card).major, _properties(card).minor),
        "nvmlDeviceGetComputeRunningProcesses": lambda card: [],
        "nvmlDeviceGetGraphicsRunningProcesses": lambda card: [],
        "nvmlDeviceGetPersistenceMode": lambda card: 1,
        "nvmlDeviceGetMigMode": lambda card: (0, 0),
        "nvmlDeviceGetCpuAffinity": lambda card, size: _affinity(size),
        "nvmlDeviceGetCpuAffinityWithinScope": lambda card, size, scope: _affinity(size),
        "nvmlDeviceSetCpuAffinity": _accept,
        "nvmlDeviceClearCpuAffinity": _accept,
    }


def _sensor_functions() -> dict[str, Callable[..., Any]]:
    return {
        "nvmlDeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=1, memory=1),
        **dict.fromkeys(("nvmlDeviceGetTemperature", "nvmlDeviceGetFanSpeed"), lambda card, *_: 1),
        **dict.fromkeys(
            ("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetApplicationsClock"),
            lambda card, *_: 1,
        ),
        **dict.fromkeys(
            (
                "nvmlDeviceGetPowerUsage",
                "nvmlDeviceGetPowerManagementLimit",
                "nvmlDeviceGetEnforcedPowerLimit",
                "nvmlDeviceGetTotalEnergyConsumption",
            ),
            lambda card: 1000,  # in thousandths
        ),
    }


def _link_functions() -> dict[str, Callable[..., Any]]:
    return {
        "nvmlDeviceGetNvLinkState": lambda card, link: int(link < _NUM_NVLINKS),
        "nvmlDeviceGetP2PStatus": lambda card, other, index: 0,
        "nvmlDeviceGetTopologyCommonAncestor": lambda card, other: _CONSTANTS["NVML_TOPOLOGY_NODE"],
    }


def _handle(index: int) -> int:
    count = loaded_core().device_count()
    if not 0 <= int(index) < count:
        raise importlib.import_module("pynvml").NVMLError_InvalidArgument(
            f"the index of a card must be below {count}, the GPUs of one node, but got {index}"
        )
    return int(index)


def _properties(card: int) -> Any:
    import torch

    return torch.cuda.get_device_properties(card)


def _memory(card: int) -> SimpleNamespace:
    free, total = loaded_core().memory_info(card)
    return SimpleNamespace(total=total, free=free, used=total - free, reserved=0)


def _affinity(num_words: int) -> list[int]:
    """Return a mask of the host's cores, in words of 64."""
    mask = (1 << (os.cpu_count() or 1)) - 1
    return [mask >> (64 * word) & (2**64 - 1) for word in range(num_words)]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _accept(*_: Any) -> None:
    return None
