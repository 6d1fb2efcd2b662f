"""Signatures: which operator ran, on which shapes.

A training loop repeats itself, so the tens of thousands of operators a rank launches are a few thousand distinct
*signatures* (operator, geometry of its tensors, scalars) and a column of indices into them. A signature travels as one
JSON text, `{"op": "aten::mm", "in": [["bfloat16", [8, 4], [4, 1], "cuda"], ...], "out": [...], "args": [...]}`, and is
parsed on demand. A kernel that is not torch's own also has `"work": {...}`, see `work.py`.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from sandtable.errors import TraceError
from sandtable.trace.work import Work

__all__ = ["DTYPE_BITS", "TENSOR", "Signature", "SignatureTable", "TensorSpec", "hash_texts"]

DTYPE_BITS = {
    "bool": 8,
    "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64,
    "int8": 8, "int16": 16, "int32": 32, "int64": 64,
    "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64,
    "complex32": 32, "complex64": 64, "complex128": 128,
    "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
    "float4_e2m1fn_x2": 8,
    "qint8": 8, "quint8": 8, "qint32": 32,
}  # fmt: skip
"""Bits of one element, by torch's name of the type without `torch.`."""

TENSOR = "t"
"""The placeholder for a tensor or a list of tensors among the arguments of a signature."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The geometry of one tensor, without its content."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    device: str = "cuda"

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def element_bytes(self) -> int:
        try:
            return DTYPE_BITS[self.dtype] // 8
        except KeyError:
            raise TraceError(
                f"dtype of a recorded tensor must be one of {', '.join(DTYPE_BITS)}, but got {self.dtype!r}; "
                "record the trace and read it with the same version of sandtable"
            ) from None

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements, whether or not several of them share an address."""
        return self.num_elements * self.element_bytes

    @property
    def distinct_bytes(self) -> int:
        """Bytes of distinct addresses: an expanded dimension (stride 0) holds one element, however long it is."""
        if not self.strides or not self.num_elements:
            return self.size_bytes
        sizes = (size for size, stride in zip(self.shape, self.strides, strict=True) if stride)
        return prod(sizes) * self.element_bytes


@dataclass(frozen=True, slots=True)
class Signature:
    """One operator on one geometry.

    `args` is the JSON list of its arguments in schema order, null where one was not given. Tensors, which are in
    `inputs`, are left out or leave `"t"` in their place; numbers that tensors are computed with leave `"s"`. `work` is
    what a launch does, where the name of the operator does not say it. `tf32` products of float32 matrices run on the
    matrix units, as the script allows.
    """

    op: str
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    args: str = "[]"
    work: Work | None = None
    tf32: bool = False

    @classmethod
    def parse(cls, text: str) -> "Signature":
        """Parse the JSON text of a signature; tensors that were not given (null) are left out."""
        try:
            data = json.loads(text)
            inputs = tuple(_spec(row) for row in data["in"] if row is not None)
            outputs = tuple(_spec(row) for row in data["out"] if row is not None)
            work = Work.from_dict(data["work"]) if "work" in data else None
            return cls(data["op"], inputs, outputs, _compact(data["args"]), work, data.get("tf32", False))
        except (ValueError, KeyError, TypeError) as error:
            raise TraceError(
                f'a signature must be JSON with "op", "in", "out" and "args", but got {text[:200]!r} ({error}); '
                "capture the run again"
            ) from error

    @property
    def text(self) -> str:
        """The JSON text that `parse` reads."""
        work = "" if self.work is None else f',"work":{self.work.text}'
        tf32 = ',"tf32":true' if self.tf32 else ""
        tensors = f'"in":{_rows(self.inputs)},"out":{_rows(self.outputs)}'
        return f'{{"op":{_compact(self.op)},{tensors},"args":{self.args}{work}{tf32}}}'

    @property
    def name(self) -> str:
        """The operator without its overload: `aten::add` for `aten::add.Tensor`."""
        return self.op.partition(".")[0]

    @property
    def arguments(self) -> list[Any]:
        """The decoded arguments, with `TENSOR` in place of a tensor or a list of tensors."""
        decoded: list[Any] = json.loads(self.args)
        return decoded


class SignatureTable(Sequence[Signature]):
    """Signatures kept as texts and parsed one by one, on demand."""

    def __init__(self, signatures: Iterable[str | Signature] = ()) -> None:
        self.texts: tuple[str, ...] = tuple(s if isinstance(s, str) else s.text for s in signatures)
        self._parsed: dict[int, Signature] = {}

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, index: int) -> Signature: ...
    @overload
    def __getitem__(self, index: slice) -> "SignatureTable": ...
    def __getitem__(self, index: int | slice) -> "Signature | SignatureTable":
        if isinstance(index, slice):
            return SignatureTable(self.texts[index])
        index = int(index)
        signature = self._parsed.get(index)
        if signature is None:
            signature = self._parsed[index] = Signature.parse(self.texts[index])
        return signature

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SignatureTable) and self.texts == other.texts

    def __hash__(self) -> int:
        return hash(self.texts)

    def __repr__(self) -> str:
        return f"SignatureTable({len(self)} signatures)"

    @cached_property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """One 64-bit hash of its content per signature: equal in two tables where the signatures do the same work."""
        return hash_texts(map(_work_text, self.texts))


_ON_VALUES = '"depends_on_values":true'
_FLOPS = re.compile(r'"flops":\d+,?')
_FUSED = '{"op":"inductor::'
_FUSED_NAMES = re.compile(r'(?<=^{"op":"inductor::)(triton_[a-z]+)_fused_[^"]*')


def _work_text(text: str) -> str:
    """Return what of a signature tells ranks apart.

    Not the operations that depend on values: ranks with other data do the same. Nor which operators a compiler fused
    into a kernel, which is in its name: on the first rank of a tensor-parallel group a comparison with 0 may drop out.
    """
    if text.startswith(_FUSED):
        text = _FUSED_NAMES.sub(r"\1", text)
    return _FLOPS.sub("", text) if _ON_VALUES in text else text


def hash_texts(texts: Iterable[str]) -> npt.NDArray[np.uint64]:
    """Return 64-bit hashes of texts, the same in every process."""
    blake = hashlib.blake2b
    joined = b"".join([blake(text.encode(), digest_size=8).digest() for text in texts])
    return np.frombuffer(joined, dtype="<u8").astype(np.uint64)


def _spec(row: Sequence[Any]) -> TensorSpec:
    dtype, shape, strides, device = row
    return TensorSpec(dtype, tuple(shape), tuple(strides), device)


def _rows(specs: Iterable[TensorSpec]) -> str:
    return _compact([[spec.dtype, spec.shape, spec.strides, spec.device] for spec in specs])


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
