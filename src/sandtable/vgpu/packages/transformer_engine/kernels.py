"""Kernels of Transformer Engine: how one launch is recorded."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from sandtable.trace.work import Work, WorkFamily
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = ["launch", "present"]


def launch(
    name: str, inputs: Iterable[Tensor | None], outputs: Iterable[Tensor | None], work: Work | WorkFamily
) -> None:
    """Record one launch of `name`; tensors that are not there are left out."""
    work = Work(family=work) if isinstance(work, str) else work
    record_kernel(f"transformer_engine::{name}", inputs=present(inputs), outputs=present(outputs), work=work)


def present(tensors: Iterable[Tensor | None]) -> list[Tensor]:
    """Return the tensors that are there."""
    return [tensor for tensor in tensors if tensor is not None]
