# ruff: noqa: N802, N815 - the names are CUDA's
"""The CUDA runtime, cuDNN, NVTX and NCCL modules that scripts look for."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from types import ModuleType
from typing import Any

__all__ = ["names"]

CUDNN_VERSION = 91900
NCCL_VERSION = 2 << 32 | 27 << 16 | 5


class CudaError(IntEnum):
    """Return codes of the CUDA runtime."""

    success = 0


class Nvtx:
    """Markers of NVIDIA's profiler: accepted, and nothing is profiled."""

    @staticmethod
    def markA(message: str) -> None:
        """Accept a mark."""

    @staticmethod
    def rangePushA(message: str) -> int:
        """Accept the start of a nested range."""
        return 0

    @staticmethod
    def rangePop() -> int:
        """Accept the end of a nested range."""
        return 0

    @staticmethod
    def rangeStartA(message: str) -> int:
        """Accept the start of a range."""
        return 0

    @staticmethod
    def rangeEnd(handle: int) -> None:
        """Accept the end of a range."""

    @staticmethod
    def deviceRangeStart(*_: object) -> int:
        """Accept the start of a range on a stream."""
        return 0

    @staticmethod
    def deviceRangeEnd(*_: object) -> None:
        """Accept the end of a range on a stream."""


class Cudnn:
    """cuDNN's version, as ``torch.backends.cudnn`` asks for it."""

    is_cuda = True

    @staticmethod
    def getVersionInt() -> int:
        """Return the version as one number."""
        return CUDNN_VERSION

    @staticmethod
    def getRuntimeVersion() -> tuple[int, int, int]:
        """Major, minor, patch."""
        return (CUDNN_VERSION // 10000, CUDNN_VERSION % 10000 // 100, CUDNN_VERSION % 100)

    getCompileVersion = getRuntimeVersion


def names(core: ModuleType) -> dict[str, Any]:
    """Return the names of ``torch._C`` that belong to libraries."""

    class Cudart:
        """The functions of the CUDA runtime that scripts call."""

        cudaError = CudaError

        @staticmethod
        def cudaGetErrorString(code: CudaError) -> str:
            return "no error"

        @staticmethod
        def cudaMemGetInfo(device: int) -> tuple[int, int]:
            free, total = core.memory_info(device)
            return (free, total)

        @staticmethod
        def cudaProfilerStart() -> CudaError:
            return CudaError.success

        @staticmethod
        def cudaProfilerStop() -> CudaError:
            return CudaError.success

        @staticmethod
        def cudaHostRegister(*_: object) -> CudaError:
            return CudaError.success

        @staticmethod
        def cudaHostUnregister(*_: object) -> CudaError:
            return CudaError.success

    return {
        "_cudart": Cudart,
        "_nvtx": Nvtx,
        "_cudnn": Cudnn,
        "_has_cudnn": True,
        "_has_cusparselt": False,
        "_cudnn_set_conv_benchmark_empty_cache": _accept,
        "_cudnn_clear_dropout_state": _accept,
        "_cuda_get_conv_benchmark_empty_cache": lambda: False,
        "_is_flash_attention_available": lambda: True,
        "_can_use_flash_attention": _can_use(core, "flash"),
        "_can_use_mem_efficient_attention": _can_use(core, "efficient"),
        "_can_use_cudnn_attention": _can_use(core, "cudnn"),
        "_cuda_get_cudnn_benchmark_limit": lambda: 10,
        "_cuda_set_cudnn_benchmark_limit": _accept,
        "_nccl_version": lambda: NCCL_VERSION,
        "_nccl_version_suffix": lambda: b"",
        "_cuda_getCurrentBlasHandle": lambda: 1,
        "_cuda_getCurrentSolverHandle": lambda: 1,
        "_cuda_tunableop_enable": _accept,
        "_cuda_tunableop_is_enabled": lambda: False,
        "_cuda_tunableop_tuning_enable": _accept,
        "_cuda_tunableop_tuning_is_enabled": lambda: False,
        "_cuda_record_untuned_enable": _accept,
        "_cuda_record_untuned_is_enabled": lambda: False,
    }


def _can_use(core: ModuleType, kernel: str) -> Callable[..., bool]:
    def can_use_kernel(params: Any, debug: bool = False) -> bool:
        given = (params.query, params.key, params.value)
        answer: bool = core.can_use_attention(
            kernel, *given, params.attn_mask is not None, params.is_causal, params.enable_gqa
        )
        return answer

    return can_use_kernel


def _accept(*_: object) -> None:
    return None
