"""Host kernels: what only cards have a kernel for, as its formula, so that values exist on the host, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch.library import Library

__all__ = ["add_host_kernels"]

_libraries: list[Library] = []
"""Kernels live as long as what registers them."""


def add_host_kernels() -> None:
    """Register the formulas for tensors in host memory, where torch has none."""
    from torch._C import _dispatch_has_kernel_for_dispatch_key
    from torch.library import Library

    library = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    for name, kernel in {"_fused_rms_norm_backward": _rms_norm_backward}.items():
        if not _dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CPU"):
            library.impl(name, kernel, "CPU")  # type: ignore[no-untyped-call]


def _rms_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, weight: Tensor | None, mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return dx = rstd (g - n mean(g n)) with n = x rstd and g = dy w; and dw = the sum of dy n over all rows."""
    dims = list(range(x.dim() - len(shape), x.dim()))
    rows = list(range(x.dim() - len(shape)))
    normed, upstream = x.float() * rstd.float(), grad.float()
    weighted = upstream if weight is None else upstream * weight.float()
    dx = rstd.float() * (weighted - normed * (weighted * normed).mean(dims, keepdim=True)) if mask[0] else None
    dw = (upstream * normed).sum(rows) if rows else upstream * normed
    return (
        None if dx is None else dx.to(x.dtype),
        dw.to(weight.dtype) if mask[1] and weight is not None else None,
    )
