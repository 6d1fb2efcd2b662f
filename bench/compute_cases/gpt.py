"""The operators of a GPT layer, written down by hand: as Megatron-LM of 2020-2022 runs it, or with fused attention.

Megatron: float16, attention as batched products with one kernel for scale, mask and softmax, dropout after the softmax
and after both blocks, one kernel for bias and gelu, one for bias, dropout and residual. Fused: bfloat16, no biases and
no dropout (the MPT models of llm-foundry, whose Triton kernel of 2023 was as fast as torch's memory-efficient one and
about half as fast as FlashAttention-2). A custom kernel appears as an elementwise operator on the same tensors, which
costs the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sandtable.trace.signature import Signature, TensorSpec

__all__ = ["Gpt", "adam_ops", "attention_ops", "backward_ops", "forward_ops", "head_ops"]

ADAM_TENSORS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpt:
    """A GPT. `tp` GPUs share each layer; `vocab` is already padded."""

    hidden: int
    heads: int
    layers: int
    seq: int
    batch: int
    vocab: int = 51200
    tp: int = 1
    dtype: str = "float16"
    style: str = "megatron"
    loss_dtype: str = "float32"

    @property
    def tokens(self) -> int:
        return self.batch * self.seq

    @property
    def num_params(self) -> int:
        return 12 * self.layers * self.hidden**2 + self.vocab * self.hidden

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """Return (out, in) of the four weights of a layer on one GPU."""
        h, part = self.hidden, self.hidden // self.tp
        return ((3 * part, h), (h, part), (4 * part, h), (h, 4 * part))


def forward_ops(model: Gpt) -> Iterator[Signature]:
    """Yield the forward operators of one layer."""
    full = spec(model.dtype, model.tokens, model.hidden)
    wide = spec(model.dtype, model.tokens, 4 * model.hidden // model.tp)
    for _ in range(2):
        yield layer_norm(full)
        yield op("add", [full, full], [full])
    for columns, rows in model.products:
        yield product(model.dtype, model.tokens, columns, rows)
    yield op("gelu", [wide], [wide])
    if model.style == "fused":
        yield fused_attention(model, backward=False)
        return
    yield from attention_ops(model)
    for _ in range(2):  # bias, dropout and residual are one kernel, the sum above; it also writes a mask
        yield op("zero_", [mask(full)], [mask(full)])


def backward_ops(model: Gpt) -> Iterator[Signature]:
    """Yield the backward operators of one layer: the gradients of inputs and weights."""
    full = spec(model.dtype, model.tokens, model.hidden)
    wide = spec(model.dtype, model.tokens, 4 * model.hidden // model.tp)
    for columns, rows in model.products:
        yield product(model.dtype, model.tokens, rows, columns)
        yield product(model.dtype, columns, rows, model.tokens)
    for _ in range(2):
        yield layer_norm_backward(full)
        yield op("add", [full, full], [full])
    yield op("gelu_backward", [wide, wide], [wide])
    if model.style == "fused":
        yield fused_attention(model, backward=True)
        return
    yield from _attention_backward(model)
    for width, _ in model.products:
        grad = spec(model.dtype, model.tokens, width)
        yield op("sum", [grad], [spec(model.dtype, width)])
    for _ in range(2):
        yield op("native_dropout_backward", [full, mask(full)], [full])


def head_ops(model: Gpt) -> Iterator[Signature]:
    """Yield embedding, last norm, logits and loss, forward and backward."""
    full = spec(model.dtype, model.tokens, model.hidden)
    table = spec(model.dtype, model.vocab, model.hidden)
    logits, exact = spec(model.dtype, model.tokens, model.vocab), spec(model.loss_dtype, model.tokens, model.vocab)
    index = spec("int64", model.tokens)
    yield op("embedding", [table, index], [full])
    yield layer_norm(full)
    yield product(model.dtype, model.tokens, model.vocab, model.hidden)
    if exact != logits:
        yield op("copy_", [logits], [exact])
        yield op("copy_", [exact], [logits])
    yield op("_log_softmax", [exact], [exact])
    yield op("nll_loss_forward", [exact, index], [spec("float32")])
    yield op("nll_loss_backward", [spec("float32"), exact, index, spec("float32")], [exact])
    yield op("_log_softmax_backward_data", [exact, exact], [exact])
    yield product(model.dtype, model.tokens, model.hidden, model.vocab)
    yield product(model.dtype, model.vocab, model.hidden, model.tokens)
    yield layer_norm_backward(full)
    yield op("embedding_dense_backward", [full, index], [table])


def adam_ops(num_params: int) -> Iterator[Signature]:
    """Yield a mixed-precision step: gradients to float32, their norm, Adam, and the weights back to 16 bits."""
    size = num_params // ADAM_TENSORS
    half, single = [spec("float16", size)] * ADAM_TENSORS, [spec("float32", size)] * ADAM_TENSORS
    yield op("_foreach_copy_", single + half, [], '["t","t",false]')
    yield op("_foreach_norm", single, [spec("float32")] * ADAM_TENSORS, '["t"]')
    adam = '["t","t","t","t","t","t",0.001,0.9,0.999,0.1,1e-08,false,false,null,null]'
    yield op("_fused_adamw_", single * 4 + [spec("float32")] * ADAM_TENSORS, [], adam)
    yield op("_foreach_copy_", half + single, [], '["t","t",false]')


def attention_ops(model: Gpt) -> Iterator[Signature]:
    """Yield attention as products, which selective recomputation repeats."""
    batch, dim = model.batch * model.heads // model.tp, model.hidden // model.heads
    scores = spec(model.dtype, batch, model.seq, model.seq)
    yield bmm(model.dtype, batch, model.seq, model.seq, dim)
    yield op("_softmax", [scores], [scores])
    yield op("native_dropout", [scores], [scores, mask(scores)])
    yield bmm(model.dtype, batch, model.seq, dim, model.seq)
    context = spec(model.dtype, model.tokens, model.hidden // model.tp)
    yield op("copy_", [context], [context])


def _attention_backward(model: Gpt) -> Iterator[Signature]:
    batch, dim = model.batch * model.heads // model.tp, model.hidden // model.heads
    scores = spec(model.dtype, batch, model.seq, model.seq)
    yield bmm(model.dtype, batch, model.seq, model.seq, dim)
    yield bmm(model.dtype, batch, model.seq, dim, model.seq)
    yield op("native_dropout_backward", [scores, mask(scores)], [scores])
    yield op("_softmax_backward_data", [scores, scores], [scores])
    yield bmm(model.dtype, batch, model.seq, dim, model.seq)
    yield bmm(model.dtype, batch, model.seq, dim, model.seq)
    joined = spec(model.dtype, model.tokens, 3 * model.hidden // model.tp)
    yield op("cat", [joined], [joined])


def fused_attention(model: Gpt, *, backward: bool) -> Signature:
    """Return causal attention without dropout, as a first-generation fused kernel."""
    head = spec(model.dtype, model.batch, model.heads, model.seq, model.hidden // model.heads)
    rows = spec("float32", model.batch, model.heads, model.seq)
    if backward:
        args = '["t","t","t","t",null,"t","t","t","t",0,[true,true,true,false],true,null]'
        inputs = [head, head, head, head, head, rows]
        return op("_scaled_dot_product_efficient_attention_backward", inputs, [head, head, head], args)
    args = '["t","t","t",null,true,0,true,null]'
    return op("_scaled_dot_product_efficient_attention", [head, head, head], [head, rows], args)


def layer_norm(x: TensorSpec) -> Signature:
    weight, rows = spec(x.dtype, x.shape[-1]), spec("float32", x.shape[0], 1)
    return op("native_layer_norm", [x, weight, weight], [x, rows, rows])


def layer_norm_backward(x: TensorSpec) -> Signature:
    weight, rows = spec(x.dtype, x.shape[-1]), spec("float32", x.shape[0], 1)
    return op("native_layer_norm_backward", [x, x, rows, rows, weight, weight], [x, weight, weight])


def product(dtype: str, m: int, n: int, k: int) -> Signature:
    return op("mm", [spec(dtype, m, k), spec(dtype, k, n)], [spec(dtype, m, n)])


def bmm(dtype: str, batch: int, m: int, n: int, k: int) -> Signature:
    return op("bmm", [spec(dtype, batch, m, k), spec(dtype, batch, k, n)], [spec(dtype, batch, m, n)])


def mask(of: TensorSpec) -> TensorSpec:
    return spec("bool", *of.shape)


def spec(dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(dtype, shape)


def op(name: str, inputs: list[TensorSpec], outputs: list[TensorSpec], args: str = "[]") -> Signature:
    return Signature(f"aten::{name}", tuple(inputs), tuple(outputs), args)
