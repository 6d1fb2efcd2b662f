"""Signatures written by hand, for the tests of the cost model."""

from sandtable.trace.signature import Signature, TensorSpec

__all__ = [
    "SAMPLES",
    "attention",
    "attention_backward",
    "bmm",
    "conv",
    "conv_backward",
    "mm",
    "op",
    "pointwise",
    "spec",
]


def spec(dtype: str, *shape: int, device: str = "cuda") -> TensorSpec:
    """Return a contiguous tensor."""
    strides, distance = [], 1
    for size in reversed(shape):
        strides.append(distance)
        distance *= size
    return TensorSpec(dtype, shape, tuple(reversed(strides)), device)


def op(name: str, inputs: list[TensorSpec], outputs: list[TensorSpec], args: str = "[]") -> Signature:
    full = name if "::" in name else f"aten::{name}"
    return Signature(full, tuple(inputs), tuple(outputs), args)


def mm(m: int, n: int, k: int, dtype: str = "bfloat16") -> Signature:
    return op("mm", [spec(dtype, m, k), spec(dtype, k, n)], [spec(dtype, m, n)], '["t","t"]')


def bmm(batch: int, m: int, n: int, k: int, dtype: str = "bfloat16") -> Signature:
    return op("bmm", [spec(dtype, batch, m, k), spec(dtype, batch, k, n)], [spec(dtype, batch, m, n)])


def pointwise(num_elements: int, dtype: str = "float32", name: str = "gelu") -> Signature:
    return op(name, [spec(dtype, num_elements)], [spec(dtype, num_elements)])


def attention(
    *, batch: int = 2, heads: int = 16, seq: int = 2048, dim: int = 128, causal: bool = True, kernel: str = "flash"
) -> Signature:
    head, rows = spec("bfloat16", batch, heads, seq, dim), spec("float32", batch, heads, seq)
    flag = "true" if causal else "false"
    args = f'["t","t","t",0,{flag},false,null]' if kernel == "flash" else f'["t","t","t",null,true,0,{flag},null]'
    return op(f"_scaled_dot_product_{kernel}_attention", [head, head, head], [head, rows], args)


def attention_backward(*, batch: int = 2, heads: int = 16, seq: int = 2048, dim: int = 128) -> Signature:
    head, rows = spec("bfloat16", batch, heads, seq, dim), spec("float32", batch, heads, seq)
    args = '["t","t","t","t","t","t","t","t",0,0,0,true,"t","t",null]'
    name = "_scaled_dot_product_flash_attention_backward"
    return op(name, [head, head, head, head, head, rows], [head, head, head], args)


def conv(
    *, batch: int = 32, channels: int = 64, filters: int = 64, size: int = 56, window: int = 3, dtype: str = "float32"
) -> Signature:
    """Stride 1, padded so that the picture keeps its size."""
    x, y = spec(dtype, batch, channels, size, size), spec(dtype, batch, filters, size, size)
    weight = spec(dtype, filters, channels, window, window)
    return op("convolution", [x, weight], [y], '["t","t","t",[1,1],[1,1],[1,1],false,[0,0],1]')


def conv_backward(forward: Signature, mask: str = "[true,true,false]") -> Signature:
    (x, weight), (y,) = forward.inputs, forward.outputs
    args = f'["t","t","t",null,[1,1],[1,1],[1,1],false,[0,0],1,{mask}]'
    return op("convolution_backward", [y, x, weight], [x, weight], args)


_ROWS, _WIDTH = 4096, 2048
_X = spec("bfloat16", _ROWS, _WIDTH)
_WEIGHT, _STATISTIC = spec("bfloat16", _WIDTH), spec("float32", _ROWS, 1)
_LOGITS, _INDEX = spec("float32", _ROWS, 50304), spec("int64", _ROWS)
_PICTURE, _CHANNEL = spec("float32", 32, 64, 56, 56), spec("float32", 64)
_POOLED, _POOLED_INDEX = spec("float32", 32, 64, 28, 28), spec("int64", 32, 64, 28, 28)
_LIST = [spec("float32", 1024, 1024)] * 8

SAMPLES = (
    mm(4096, 2048, 2048),
    mm(4096, 2048, 2048, "float32"),
    mm(128, 50257, 768, "float16"),
    bmm(64, 1024, 1024, 64),
    op("addmm", [_WEIGHT, _X, spec("bfloat16", _WIDTH, _WIDTH)], [_X]),
    attention(),
    attention(causal=False, seq=300),
    attention(kernel="efficient"),
    attention_backward(),
    conv(window=1),
    conv(window=7, channels=3),
    conv_backward(conv(window=1)),
    op("native_batch_norm", [_PICTURE, _CHANNEL, _CHANNEL], [_PICTURE, _CHANNEL, _CHANNEL]),
    op("max_pool2d_with_indices", [_PICTURE], [_POOLED, _POOLED_INDEX]),
    op("max_pool2d_with_indices_backward", [_POOLED, _PICTURE, _POOLED_INDEX], [_PICTURE]),
    op("native_layer_norm", [_X, _WEIGHT, _WEIGHT], [_X, _STATISTIC, _STATISTIC]),
    op("native_layer_norm_backward", [_X, _X, _STATISTIC, _STATISTIC, _WEIGHT, _WEIGHT], [_X, _WEIGHT, _WEIGHT]),
    op("_log_softmax", [_LOGITS], [_LOGITS]),
    op("nll_loss_forward", [_LOGITS, _INDEX], [spec("float32"), spec("float32")]),
    op("nll_loss_backward", [spec("float32"), _LOGITS, _INDEX, spec("float32")], [_LOGITS]),
    op("embedding", [spec("bfloat16", 50304, _WIDTH), _INDEX], [_X]),
    op("embedding_dense_backward", [_X, _INDEX], [spec("bfloat16", 50304, _WIDTH)]),
    op("sum", [_X], [_WEIGHT]),
    op("cat", [_X, _X], [spec("bfloat16", 2 * _ROWS, _WIDTH)]),
    op("copy_", [_X], [spec("float32", _ROWS, _WIDTH)]),
    op("_foreach_add_", _LIST + _LIST, [], '["t","t","s"]'),
    op("mylib::fused_thing", [_X, _X], [_X]),
    op("copy::host_to_device", [spec("int64", _ROWS, device="cpu")], [_INDEX]),
    pointwise(1),
    pointwise(10_000_000),
)
"""One or two of every family."""
