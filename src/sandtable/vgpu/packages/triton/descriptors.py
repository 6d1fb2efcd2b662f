"""Tensor descriptors: views of a tensor that the card's copy engine (TMA) reads and writes block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["TensorDescriptor", "create_tma_descriptor"]


@dataclass
class TensorDescriptor:
    """What a kernel is given in place of a pointer."""

    base: Any
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    padding: str = "zero"

    @staticmethod
    def from_tensor(tensor: Any, block_shape: Sequence[int], padding: str = "zero") -> TensorDescriptor:
        return TensorDescriptor(tensor, tensor.shape, tensor.stride(), block_shape, padding)


def create_tma_descriptor(pointer: Any, *sizes: int) -> TensorDescriptor:
    """Make a descriptor of the older kind, from an address: which tensor it is of is not known."""
    return TensorDescriptor(pointer, (), (), ())
