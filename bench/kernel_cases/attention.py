"""Attention: rows of validation/kernels/attention.csv as operators of flash_attn, FlashAttention-3, cuDNN and torch.

The tables of a serving engine (`serving_*`) also write the new keys and values to a cache, and read them by pages.
"""

from collections.abc import Iterator

from kernel_cases.case import BURST, Case, read, tensor
from sandtable.trace.signature import Signature

__all__ = ["attention_cases", "attention_operators"]

_DTYPES = {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}
_KERNELS = {
    "flash": "FlashAttention-2",
    "flash3": "FlashAttention-3",
    "cudnn": "cuDNN",
    "efficient": "memory-efficient",
}
_KERNELS["flash4"] = "FlashAttention-4"
_PRICED_AS = {"flash4": "flash3"}
_GPUS = {"a100-sxm4-80gb": "A100", "a100-pcie-80gb": "A100", "h100-sxm5-80gb": "H100", "h200-sxm-141gb": "H200"}
_OTHER_GPUS = {"b200-sxm-180gb": "B200", "gb200-186gb": "GB200", "b300-sxm-288gb": "GB300"}
_FITTED_TABLES = (
    "figure_fa2_a100",
    "figure_fa2_b200",
    "figure_fa2_h100",
    "figure_fa3",
    "serving_fa2",
    "cudnn_frontend",
    "cudnn_frontend_b200",
    "cudnn_training",
    "fa4_b200",
    "tritonbench",
)
_HOST_BOUND_US = {"cudnn_frontend_b200": 300.0, "torch_cudnn_b200": 300.0}
"""A call of these tables takes 0.1 ms however short its kernel is: rows below three times that are left out."""

_PAGE = 16
_TRACE_SMS = 112
"""Of 132: in DeepSeek's trace the others run the exchange between experts."""


def attention_cases() -> Iterator[Case]:
    """Yield the rows of kernels that the cost model knows, by kernel, GPU, pass and type."""
    for row in read("attention"):
        kernel = _PRICED_AS.get(row["kernel"], row["kernel"])
        if row["kernel"] not in _KERNELS or row["dtype"] not in _DTYPES:
            continue
        if float(row["us"]) < _HOST_BOUND_US.get(row["table"], 0.0):
            continue
        gpu = _GPUS.get(row["device"]) or _OTHER_GPUS[row["device"]]
        gpu = "H800 under overlap" if row["table"] == "deepseek_trace" else gpu
        kind = " fp8" if row["dtype"] == "fp8" else ""
        order = " deterministic" if row["deterministic"] == "1" else ""
        direction = "forward + backward" if row["pass"] == "both" else row["pass"]
        yield Case(
            set_name=f"{_KERNELS[row['kernel']]}{kind} {gpu} {direction}{order}",
            table=f"{row['table']} {row['kernel']}",
            device=row["device"],
            shape=_shape(row),
            published_us=float(row["us"]),
            operators=tuple(attention_operators(row, kernel)),
            conditions=BURST,
            num_sms=_TRACE_SMS if row["table"] == "deepseek_trace" else None,
            may_fit=row["table"] in _FITTED_TABLES or (row["table"] == "serving_fa3" and gpu == "H100"),
        )


def attention_operators(row: dict[str, str], kernel: str) -> Iterator[Signature]:
    """Yield what one row ran; serving engines and encoders pack their sequences."""
    dtype = _DTYPES[row["dtype"]]
    batch, queries, keys = int(row["batch"]), int(row["queries"]), int(row["keys"])
    is_served, is_packed = row["table"].startswith("serving"), row["table"].startswith(("serving", "encoder"))
    query_rows, key_rows = ((batch * queries,), (batch * keys,)) if is_packed else ((batch, queries), (batch, keys))
    query = tensor(dtype, *query_rows, int(row["heads"]), int(row["qk_dim"]))
    key = tensor(dtype, *key_rows, int(row["kv_heads"]), int(row["qk_dim"]))
    value = tensor(dtype, *key_rows, int(row["kv_heads"]), int(row["v_dim"]))
    output = tensor(dtype, *query_rows, int(row["heads"]), int(row["v_dim"]))
    causal = "true" if row["causal"] == "1" else "false"
    window = int(row["window"]) or -1
    offsets = (tensor("int32", batch + 1),) if is_packed else ()
    pages = (tensor("int32", batch, keys // _PAGE),) if is_served else ()
    forward, backward = _NAMES[kernel]
    if row["pass"] in ("forward", "both"):
        arguments = f'["t","t","t",{queries},{keys},"s","s",{causal},{window},0]'
        if kernel == "efficient":
            arguments = f'["t","t","t",null,null,null,{queries},{keys},0,{int(row["causal"])},true]'
        yield Signature(forward, (query, key, value, *offsets, *pages), (output,), arguments)
    if row["pass"] in ("backward", "both"):
        fixed = "true" if row["deterministic"] == "1" else "false"
        arguments = f'["t","t","t","t","t","t","s","s",{causal},{window},0,0,null,{fixed}]'
        if kernel == "efficient":
            arguments = f"[{','.join(['null'] * 14)},{int(row['causal'])}]"
        yield Signature(backward, (output, query, key, value, output), (query, key, value), arguments)
    if is_served:
        yield Signature("aten::_foreach_copy_", (key, value, key, value), (), '["t","t"]')


def _shape(row: dict[str, str]) -> str:
    keys = "batch queries keys heads kv_heads qk_dim v_dim causal window pass deterministic dtype"
    return ",".join(row[key] for key in keys.split())


_NAMES = {
    "flash": ("flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_backward"),
    "flash3": ("flash_attn_3::fwd", "flash_attn_3::bwd"),
    "cudnn": ("transformer_engine::fused_attn_fwd", "transformer_engine::fused_attn_bwd"),
    "efficient": ("aten::_efficient_attention_forward", "aten::_efficient_attention_backward"),
}
