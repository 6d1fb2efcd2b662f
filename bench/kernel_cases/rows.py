"""Kernels limited by memory: norms, rotary embedding, gates, losses and embeddings of Liger, cuDNN and torch.

Each is one row of validation/kernels/rows.csv. Liger's times are those of `triton.testing.do_bench`: the cache is
flushed before each call, and the time between two events holds some microseconds more than the kernels. Its backward
and full passes are issued through autograd, and where kernels are short the host sets the time: rows below 1.5 times
the smallest of their curve, and smaller shapes than those, are left out.
"""

from collections.abc import Callable, Iterator
from itertools import groupby
from math import exp

from kernel_cases.case import BURST, Case, read, tensor
from kernel_cases.products import product
from sandtable.engine.compute import Conditions
from sandtable.trace.signature import Signature, TensorSpec
from sandtable.trace.work import Work

__all__ = ["row_cases"]

_EVENT_US = 5.0
_HOST_BOUND = 1.5
_MLP_WIDTH = 11008
_VOCABULARY = 128256
_HEADS, _KV_HEADS = 32, 8

_BACKWARD_ROW_NS, _BACKWARD_ELEMENT_NS, _SPILL = 700.0, {2: 0.86, 4: 1.06}, 1.9
_LONGEST_ROW = 16384
"""Liger's backward norms: one program per multiprocessor takes a row at a time; its registers hold no longer rows."""

_LOSS_ROW_NS, _LOSS_ELEMENT_NS = 1000.0, 0.36
_LOSS_CACHED_ROW_BYTES = 128 * 1024
"""Liger's loss: a program per row; the second reading of a longer row comes from memory again."""


def row_cases() -> Iterator[Case]:
    """Yield the rows that are not limited by the host, by kernel and provider."""
    rows = [row for row in read("rows") if _is_described(row)]
    for (provider, *_), curve in groupby(rows, key=_curve):
        curve_rows = list(curve)
        for row in _without_host_bound(curve_rows):
            operators = tuple(_operators(row))
            if operators:
                yield _case(row, provider, operators)


def _is_described(row: dict[str, str]) -> bool:
    """Return whether it is: torch's own kernels come from the table that names its version."""
    if row["provider"] == "torch" and row["table"].startswith("liger"):
        return False
    return (row["kernel"].split("_")[0], row["pass"]) not in _NOT_DESCRIBED


def _without_host_bound(curve: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows of a curve above the last one that the host limits; autograd issues all but forward passes."""
    first = curve[0]
    if not first["table"].startswith("liger") or first["pass"] == "forward" or "mlp" in first["kernel"]:
        return curve
    floor_us = min(float(row["us"]) for row in curve)
    limited = [int(row["rows"]) * int(row["width"]) for row in curve if float(row["us"]) < _HOST_BOUND * floor_us]
    return [row for row in curve if int(row["rows"]) * int(row["width"]) > max(limited)]


def _case(row: dict[str, str], provider: str, operators: tuple[Signature, ...]) -> Case:
    kernel = row["kernel"].partition("_")[0] if row["kernel"].startswith("embedding") else row["kernel"]
    kind = "norms" if kernel.endswith("norm") else kernel.replace("_", " ")
    gpu = row["device"].split("-")[0].upper()
    return Case(
        set_name=f"{provider} {kind} {gpu} {row['pass']}",
        table=row["table"],
        device=row["device"],
        shape=f"{row['kernel']},{row['pass']},{row['dtype']},{row['rows']},{row['width']}",
        published_us=float(row["us"]),
        operators=operators,
        conditions=Conditions() if "linear" in row["kernel"] else BURST,
        harness_us=_EVENT_US if row["table"].startswith("liger") else 0.0,
        may_fit=True,
    )


def _curve(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[key] for key in ("provider", "table", "device", "kernel", "pass", "dtype"))


def _operators(row: dict[str, str]) -> Iterator[Signature]:
    """Yield the operators of the passes of one row."""
    kernel = row["kernel"]
    num_rows, width = int(row["rows"]), int(row["width"])
    x = tensor(row["dtype"], num_rows, width)
    for direction in ("forward", "backward") if row["pass"] == "full" else (row["pass"],):
        if kernel.startswith("embedding_"):
            yield from _embedding(x, int(kernel.partition("_")[2]))
        elif kernel.endswith("norm") and row["provider"] == "torch":
            yield _torch_norm(x, kernel, direction)
        else:
            yield from _DESCRIPTIONS[kernel](x, direction, row["provider"])


def _torch_norm(x: TensorSpec, kernel: str, direction: str) -> Signature:
    name = "aten::_fused_rms_norm" if kernel == "rms_norm" else "aten::native_layer_norm"
    if direction == "forward":
        return Signature(name, (x,), (x,), "[]")
    return Signature(f"{name}_backward", (x, x), (x,), "[]")


def _norm(x: TensorSpec, direction: str, provider: str) -> Iterator[Signature]:
    """Describe norms in one kernel: cuDNN's stream; Liger's backward takes a row at a time."""
    if direction == "forward":
        yield _kernel(
            "norm_forward", (x,), (x,), Work(family="normalisation" if provider == "cudnn" else "elementwise")
        )
        return
    work = Work(family="normalisation", num_kernels=3)
    if provider == "liger":
        num_rows, width = x.shape
        row_ns = _BACKWARD_ROW_NS + _BACKWARD_ELEMENT_NS[x.element_bytes] * width * (
            _SPILL if width > _LONGEST_ROW else 1
        )
        work = Work(family="normalisation", num_kernels=3, rows=num_rows, row_ns=row_ns)
    yield _kernel("norm_backward", (x, x), (x,), work)


def _norm_with_sum(x: TensorSpec, direction: str, provider: str) -> Iterator[Signature]:
    """Describe a norm that adds the residual first, and returns both."""
    if direction == "forward":
        yield _kernel("add_norm_forward", (x, x), (x, x), Work())
    else:
        yield from _norm(x, direction, provider)


def _rope(x: TensorSpec, direction: str, provider: str) -> Iterator[Signature]:
    del direction, provider  # queries and keys are turned in place; the gradient turns them back
    num_rows, width = x.shape
    keys = tensor(x.dtype, num_rows, width * _KV_HEADS // _HEADS)
    yield _kernel("rope", (x, keys), (x, keys), Work())


def _gate(x: TensorSpec, direction: str, provider: str) -> Iterator[Signature]:
    del provider
    tensors = ((x, x), (x,)) if direction == "forward" else ((x, x, x), (x, x))
    yield _kernel("gate", *tensors, Work())


def _relu_squared(x: TensorSpec, direction: str, provider: str) -> Iterator[Signature]:
    if provider == "liger":
        yield _kernel("relu_squared", (x,) if direction == "forward" else (x, x), (x,), Work())


def _mlp(x: TensorSpec, direction: str, provider: str) -> Iterator[Signature]:
    """Describe a gated layer: three products forward, six backward, and the gate."""
    num_rows, width = x.shape
    shapes = [(num_rows, _MLP_WIDTH, width)] * 2 + [(num_rows, width, _MLP_WIDTH)]
    if direction == "backward":
        shapes = [(num_rows, width, _MLP_WIDTH)] * 2 + [(num_rows, _MLP_WIDTH, width)]
        shapes += [(_MLP_WIDTH, width, num_rows)] * 2 + [(width, _MLP_WIDTH, num_rows)]
        yield Signature("aten::add", (x, x), (x,), "[]")
    for m, n, k in shapes:
        yield product(m, n, k, x.dtype)
    yield from _gate(tensor(x.dtype, num_rows, _MLP_WIDTH), direction, provider)


def _loss(x: TensorSpec, direction: str, provider: str) -> Iterator[Signature]:
    """Describe the loss over classes: read for the sum, read again, written over by its gradient."""
    del provider
    if direction == "backward":
        return
    num_rows, width = x.shape
    readings = 2 if width * x.element_bytes > _LOSS_CACHED_ROW_BYTES else 1
    yield _kernel(
        "cross_entropy",
        (x,),
        (x,),
        Work(
            bytes_read=readings * x.size_bytes,
            bytes_written=x.size_bytes,
            rows=num_rows,
            row_ns=_LOSS_ROW_NS + _LOSS_ELEMENT_NS * width,
        ),
    )


def _linear_loss(x: TensorSpec, direction: str, provider: str) -> Iterator[Signature]:
    """Describe the loss with its linear layer, in pieces of rows: scores, loss in float32, gradients of both."""
    if direction == "backward":
        return
    num_rows, width = x.shape
    pieces = -(-_VOCABULARY // width)
    rows = 1 << (-(-num_rows // pieces) - 1).bit_length()
    weight = tensor(x.dtype, _VOCABULARY, width)
    scores, part = tensor(x.dtype, rows, _VOCABULARY), tensor(x.dtype, rows, width)
    wide = tensor("float32", rows, _VOCABULARY)
    for _ in range(-(-num_rows // rows)):
        yield product(rows, _VOCABULARY, width, x.dtype)
        yield Signature("aten::_to_copy", (scores,), (wide,), "[]")
        yield from _loss(wide, "forward", provider)
        yield Signature("aten::_to_copy", (wide,), (scores,), "[]")
        yield product(rows, width, _VOCABULARY, x.dtype)
        turned = tensor(x.dtype, _VOCABULARY, rows)
        yield Signature("aten::addmm", (weight, turned, part), (weight,), "[]")


def _embedding(x: TensorSpec, vocabulary: int) -> Iterator[Signature]:
    """Describe a lookup of random rows of a table."""
    num_rows, width = x.shape
    distinct = round(vocabulary * (1 - exp(-num_rows / vocabulary)))
    table = tensor(x.dtype, distinct, width)
    yield Signature("aten::embedding", (table, tensor("int64", num_rows)), (x,), "[]")


def _kernel(name: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], work: Work) -> Signature:
    return Signature(f"bench::{name}", inputs, outputs, "[]", work)


_NOT_DESCRIBED = {("embedding", "full"), ("cross", "full")}
"""Their gradients run more kernels than Liger's: sums into the table, the scaling of the loss."""

_DESCRIPTIONS: dict[str, Callable[[TensorSpec, str, str], Iterator[Signature]]] = {
    "rms_norm": _norm,
    "layer_norm": _norm,
    "fused_add_rms_norm": _norm_with_sum,
    "rope": _rope,
    "swiglu": _gate,
    "relu_squared": _relu_squared,
    "geglu_mlp": _mlp,
    "swiglu_mlp": _mlp,
    "cross_entropy": _loss,
    "fused_linear_cross_entropy": _linear_loss,
}
