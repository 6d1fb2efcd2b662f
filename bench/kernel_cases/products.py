"""Matrix products: bf16, by layout, and fp8 with the quantisation of their input."""

from collections.abc import Iterator

from kernel_cases.case import BURST, CACHED, Case, read, tensor
from sandtable.engine.compute import Conditions
from sandtable.trace.signature import Signature
from sandtable.trace.work import Work

__all__ = ["cast_cases", "layout_cases", "product_cases", "sustained_cases"]

_FP8 = "float8_e4m3fn"
_FP8_ROWS = 16
_ODD = ", odd rows"
"""A set of their own: training in float8 has multiples of 16, since the rows are the inner dimension of a gradient."""

_COLUMNS = {
    "a100_sxm_bf16": ("A100 bf16", "a100-sxm4-80gb", True),
    "a100_sxm_bf16_vllm014": ("A100 bf16, second table", "a100-sxm4-80gb", False),
    "h100_sxm_bf16": ("H100 bf16", "h100-sxm5-80gb", True),
    "h100_sxm_bf16_trtllm": ("H100 bf16, second table", "h100-sxm5-80gb", False),
    "h100_sxm_bf16_sglang": ("H100 bf16, third table", "h100-sxm5-80gb", False),
    "h200_sxm_bf16": ("H200 bf16", "h200-sxm-141gb", False),
    "b200_sxm_bf16": ("B200 bf16", "b200-sxm-180gb", True),
    "b300_sxm_bf16": ("B300 bf16", "b300-sxm-288gb", False),
    "gb200_bf16": ("GB200 bf16", "gb200-186gb", False),
    "h100_sxm_fp8": ("H100 fp8 with cast", "h100-sxm5-80gb", True),
    "h200_sxm_fp8": ("H200 fp8 with cast", "h200-sxm-141gb", False),
    "b200_sxm_fp8": ("B200 fp8 with cast", "b200-sxm-180gb", True),
    "h100_sxm_fp8_block": ("H100 fp8 in blocks with cast", "h100-sxm5-80gb", True),
}

_EAGER_FLOOR_US = 200.0
_BLOCK_HARNESS_US = 34.0
"""The products in blocks were issued by the host one by one: short times are the host's, and all include some of it."""

_ROW_LATENCY_NS, _ROW_STEP_NS, _ROW_STEP, _ROWS_AT_A_TIME = 720.0, 1660.0, 2048, 3
"""vLLM's quantisation per token: one block per row, three at a time, each in steps of 2,048 numbers."""


def product_cases() -> Iterator[Case]:
    """Yield products of at least 128 rows; those in fp8 include the quantisation of their input per row (token)."""
    for row in read("products"):
        m, n, k = (int(row[key]) for key in "mnk")
        for column, (name, device, may_fit) in _COLUMNS.items():
            is_block = column.endswith("fp8_block")
            if not row[column] or (is_block and float(row[column]) < _EAGER_FLOOR_US):
                continue
            operators = (product(m, n, k, "bfloat16"),)
            if "fp8" in column:
                operators = (block_cast(m, k) if is_block else row_cast(m, k), product(m, n, k, _FP8))
            yield Case(
                set_name=f"products {name}" + (_ODD if "fp8" in column and m % _FP8_ROWS else ""),
                table=column,
                device=device,
                shape=f"{m},{n},{k}",
                published_us=float(row[column]),
                operators=operators,
                conditions=BURST,
                harness_us=_BLOCK_HARNESS_US if is_block else 0.0,
                may_fit=may_fit,
            )


def layout_cases() -> Iterator[Case]:
    """Yield products of training: forward (TN), gradient of the input (NN), of the weight in float32 (NT)."""
    for row in read("products_by_layout"):
        gpu = row["device"].split("-")[0].upper()
        groups, m, n, k = (int(row[key]) for key in ("groups", "m", "n", "k"))
        flops = 2 * groups * m * n * k
        out = "float32" if row["out_dtype"] == "fp32" else "bfloat16"
        kind = {"TN": "forward", "NN": "input gradient", "NT": "weight gradient"}.get(row["layout"], row["kind"])
        if row["kind"] == "dense":
            operators = (product(m, n, k, "bfloat16", out),)
            if row["layout"] == "NT":  # adds to the gradient that is there
                operators = (Signature("aten::addmm", (tensor(out, m, n), *operators[0].inputs), operators[0].outputs),)
        else:
            work = Work(family="gemm", products=((1, m, n, k),) * groups, dtype="bfloat16")
            tensors = (tensor("bfloat16", groups, m, k), tensor("bfloat16", groups, k, n))
            operators = (Signature("grouped::gemm", tensors, (tensor(out, groups, m, n),), "[]", work),)
        yield Case(
            set_name=f"products {gpu} {'grouped' if row['kind'] != 'dense' else kind}",
            table="simumax",
            device=row["device"],
            shape=f"{row['kind']},{groups},{m},{n},{k},{row['layout']}",
            published_us=flops / float(row["tflops"]) / 1e6,
            operators=operators,
            conditions=Conditions(),  # an A100 with a power limit of 300 W; a B200 as slow as in a long run
            may_fit=gpu == "B200",
        )


_CAST_DEVICES = {"h100": "h100-sxm5-80gb", "h200": "h200-sxm-141gb", "b200": "b200-sxm-180gb"}
_GRAPH_US = -0.45
"""Kernels of a graph start before the one before has quite ended."""


def cast_cases() -> Iterator[Case]:
    """Yield casts to fp8 with a given scale, one after the other on the same tensors."""
    for row in read("casts"):
        m, k = int(row["m"]), int(row["k"])
        for gpu, device in _CAST_DEVICES.items():
            yield Case(
                set_name=f"casts to fp8 {gpu.upper()}",
                table=gpu,
                device=device,
                shape=f"{m},{k}",
                published_us=float(row[f"{gpu}_cast_us"]),
                operators=(Signature("aten::_to_copy", (tensor("bfloat16", m, k),), (tensor(_FP8, m, k),), "[]"),),
                conditions=CACHED,
                harness_us=_GRAPH_US,
                may_fit=gpu != "h200",
            )


def sustained_cases() -> Iterator[Case]:
    """Yield Azure's products after 10,000 warm-up iterations, for which the conditions are those of a long run."""
    for device, dtype, rates in _AZURE:
        for (m, n, k), tflops in zip(_AZURE_SHAPES, rates, strict=True):
            if tflops:
                yield Case(
                    set_name=f"products sustained {device.split('-')[0].upper()} {dtype}",
                    table="azure",
                    device=device,
                    shape=f"{m},{n},{k}",
                    published_us=2 * m * n * k / tflops / 1e6,
                    operators=(product(m, n, k, dtype),),
                    conditions=Conditions(),
                )


def product(m: int, n: int, k: int, dtype: str, out: str = "bfloat16") -> Signature:
    """Return the operator of torch for one product."""
    name = "aten::_scaled_mm" if dtype == _FP8 else "aten::mm"
    return Signature(name, (tensor(dtype, m, k), tensor(dtype, k, n)), (tensor(out, m, n),), "[]")


def row_cast(m: int, k: int) -> Signature:
    """Return the quantisation of each row by its own scale, as vLLM's kernel does it."""
    row_ns = _ROW_LATENCY_NS + _ROW_STEP_NS * -(-k // _ROW_STEP)
    work = Work(family="normalisation", rows=-(-m // _ROWS_AT_A_TIME), row_ns=row_ns)
    tensors = ((tensor("bfloat16", m, k),), (tensor(_FP8, m, k), tensor("float32", m)))
    return Signature("vllm::dynamic_per_token_scaled_fp8_quant", *tensors, "[]", work)


def block_cast(m: int, k: int) -> Signature:
    """Return the quantisation of 128 numbers at a time: their largest first, then each of them."""
    outputs = (tensor(_FP8, m, k), tensor("float32", m, -(-k // 128)))
    x = tensor("bfloat16", m, k)
    work = Work(family="normalisation", bytes_read=2 * x.size_bytes)
    return Signature("bench::block_cast", (x,), outputs, "[]", work)


_AZURE_SHAPES = (
    *((size, size, size) for size in (1024, 2048, 4096, 8192, 16384, 32768)),
    *((1024, 2145, 1024), (6144, 12288, 12288), (802816, 192, 768)),
)
_AZURE = (
    ("a100-sxm4-80gb", "float16", (119.4, 221.8, 228.0, 253.7, 256.5, None, 132.8, 250.8, 157.8)),
    ("h100-sxm5-80gb", _FP8, (274.1, 1011.3, 1216.9, 1290.1, 1377.3, 1382.2, 410.7, 1351.4, 663.8)),
    ("h200-sxm-141gb", _FP8, (290.8, 1013.4, 1249.1, 1300.6, 1366.3, 1349.5, 407.9, 1318.0, 717.5)),
)
"""TFLOP/s of cuBLASLt; Azure/AI-benchmarking-guide, Azure_Results."""
