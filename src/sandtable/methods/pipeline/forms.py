"""Forms: what a tensor looks like without its values. A sender sends each form once per peer, like a label."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sandtable.errors import MethodError

__all__ = ["Form", "as_tuple", "decode", "encode", "forms_of"]

_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
_NOTHING = -1


@dataclass(frozen=True, slots=True)
class Form:
    """Shape and type of one tensor, and whether a gradient for it is expected."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    def empty(self, device: torch.device) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def zeros(self, device: torch.device) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device=device, requires_grad=self.requires_grad)

    def __str__(self) -> str:
        return f"{list(self.shape)} of {str(self.dtype).removeprefix('torch.')}"


def forms_of(tensors: Iterable[Tensor | None]) -> tuple[Form | None, ...]:
    return tuple(
        None if tensor is None else Form(tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for tensor in tensors
    )


def as_tuple(values: Any, *, what: str = "what leaves a stage") -> tuple[Tensor, ...]:
    """Return the tensors as a tuple; anything else can neither go to another rank nor enter a stage by position."""
    tensors = tuple(values) if isinstance(values, tuple | list) else (values,)
    others = [type(value).__name__ for value in tensors if not isinstance(value, Tensor)]
    if others:
        raise MethodError(
            f"{what} must be a tensor or a tuple of tensors, but got {', '.join(others)}"
            f"{' among them' if len(tensors) > 1 else ''}; leave out what is no tensor, and give tensors by position"
        )
    return tensors


def encode(forms: Sequence[Form | None]) -> list[int]:
    """Return the forms as numbers, to be sent."""
    numbers: list[int] = []
    for form in forms:
        if form is None:
            numbers.append(_NOTHING)
        else:
            numbers += [_DTYPES.index(form.dtype), int(form.requires_grad), len(form.shape), *form.shape]
    return numbers


def decode(numbers: Sequence[int]) -> tuple[Form | None, ...]:
    return tuple(_decoded(iter(numbers)))


def _decoded(numbers: Iterator[int]) -> Iterator[Form | None]:
    for kind in numbers:
        if kind == _NOTHING:
            yield None
        else:
            requires_grad, num_dims = bool(next(numbers)), next(numbers)
            yield Form(tuple(next(numbers) for _ in range(num_dims)), _DTYPES[kind], requires_grad)
