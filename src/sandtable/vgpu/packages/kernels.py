"""Kernels: records launches of kernels that are not operators of torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sandtable.trace.work import Work
from sandtable.vgpu.preload import loaded_core

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["record_kernel"]


def record_kernel(name: str, *, inputs: Iterable[Tensor], outputs: Iterable[Tensor], work: Work) -> None:
    """Record one launch that reads `inputs` and writes `outputs`, on the current stream; their values are unknown then.

    `name` is the package's and the kernel's: `flash_attn::varlen_forward`. Outputs are allocated by the caller.
    """
    loaded_core().record_kernel(name, list(inputs), list(outputs), json.dumps(work.to_dict(), separators=(",", ":")))
