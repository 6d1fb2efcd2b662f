"""FlashAttention 2: operators, workspaces and gradients, of the installed package or of what stands in for it."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tests.vgpu.virtual import on_gpu, rehearse

from sandtable.trace import Phase

BATCH, LENGTH, HEADS, HEADS_K, SIZE = 2, 1000, 8, 2, 64


def _tensors(*, heads_k: int = HEADS_K, size: int = SIZE) -> list[Any]:
    shapes = [(BATCH, LENGTH, heads, size) for heads in (HEADS, heads_k, heads_k)]
    return [torch.empty(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for shape in shapes]


def _fixed(functions: Any) -> None:
    q, k, v = _tensors()
    functions.flash_attn_func(q, k, v, causal=True).sum().backward()
    assert [x.grad.shape for x in (q, k, v)] == [x.shape for x in (q, k, v)]


def _packed(functions: Any) -> None:
    qkv: Any = torch.empty(BATCH, LENGTH, 3, HEADS, SIZE, device="cuda", dtype=torch.float16, requires_grad=True)
    functions.flash_attn_qkvpacked_func(qkv, dropout_p=0.1, window_size=(128, 0), deterministic=True).sum().backward()
    q, k, _ = _tensors()
    kv: Any = torch.stack([k, k], dim=2).detach().requires_grad_()
    functions.flash_attn_kvpacked_func(q, kv, softcap=30.0).sum().backward()
    assert (qkv.grad.shape, kv.grad.shape) == (qkv.shape, kv.shape)


def _varlen(functions: Any) -> None:
    q, k, v = (x.flatten(0, 1) for x in _tensors())
    bounds = torch.tensor([0, 300, 1000, 2000], device="cuda", dtype=torch.int32)
    functions.flash_attn_varlen_func(q, k, v, bounds, bounds, 1000, 1000, causal=True).sum().backward()
    qkv = torch.stack([q, q, q], dim=1).detach().requires_grad_()
    functions.flash_attn_varlen_qkvpacked_func(qkv, bounds, 1000).sum().backward()


def _call(case: str, is_ours: bool) -> None:
    import flash_attn

    from sandtable.vgpu.packages.flash_attn import functions

    {"fixed": _fixed, "packed": _packed, "varlen": _varlen}[case](functions if is_ours else flash_attn)


def _operators(case: str, *, is_ours: bool = False) -> list[Any]:
    trace = rehearse(_call, arguments={"case": case, "is_ours": is_ours}).trace
    return [op for op in trace.rank(0).operators() if op.signature.op.startswith(("flash_attn::", "aten::sum"))]


def test_attention_is_the_operators_that_flash_attn_registers():
    forward, _, backward, *sums = _operators("fixed")
    assert forward.signature.op == "flash_attn::_flash_attn_forward"
    assert [spec.shape for spec in forward.signature.outputs][:2] == [
        (BATCH, LENGTH, HEADS, SIZE),
        (BATCH, HEADS, LENGTH),
    ]
    assert True in forward.signature.arguments  # causal
    assert (backward.signature.op, backward.phase) == ("flash_attn::_flash_attn_backward", Phase.BACKWARD)
    assert [op.signature.op for op in sums] == ["aten::sum"] * 2  # heads share keys and values


def test_sequences_laid_end_to_end():
    names = [op.signature.op for op in _operators("varlen") if "flash_attn" in op.signature.op]
    assert names == ["flash_attn::_flash_attn_varlen_forward", "flash_attn::_flash_attn_varlen_backward"] * 2


@pytest.mark.skipif(find_spec("flash_attn") is None, reason="compares with the installed package")
@pytest.mark.parametrize("case", ["fixed", "packed", "varlen"])
def test_the_installed_package_leaves_the_same_records(case):
    installed, ours = ([op.signature for op in _operators(case, is_ours=is_ours)] for is_ours in (False, True))
    assert installed == ours


@on_gpu()
def test_the_backward_pass_needs_an_accumulator_in_float32():
    from flash_attn import flash_attn_func

    q, k, v = _tensors(heads_k=HEADS)
    out = flash_attn_func(q, k, v)
    grad = torch.empty_like(out)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(out, (q, k, v), grad)
    rows = BATCH * HEADS * 1024
    gradients, accumulator, sums = 3 * 2 * q.numel(), 4 * rows * SIZE, 4 * rows
    peak = torch.cuda.max_memory_allocated() - before
    unsplit = peak - gradients - accumulator - sums  # what is left of a block that is not worth splitting
    assert 0 <= unsplit < 1 << 20


@on_gpu()
def test_what_is_saved_is_what_flash_attn_saves():
    from flash_attn import flash_attn_func

    tensors = _tensors(size=60)  # padded to 64
    before = torch.cuda.memory_allocated()
    out = flash_attn_func(*tensors)
    padded = sum(2 * tensor.numel() * 64 // 60 for tensor in tensors)
    output, sums, state = 2 * BATCH * LENGTH * HEADS * 64, 4 * BATCH * HEADS * LENGTH, 512
    rounding = 3 * 512
    assert 0 <= torch.cuda.memory_allocated() - before - (padded + output + sums + state) <= rounding
    assert out.shape == tensors[0].shape


@on_gpu()
def test_padding_is_taken_out_and_put_back():
    from flash_attn.bert_padding import pad_input, unpad_input

    mask = torch.tensor([[1, 1, 0], [1, 0, 0]], device="cuda")
    x: Any = torch.arange(12.0, device="cuda").reshape(2, 3, 2).requires_grad_()
    tokens, places, bounds, longest, used = unpad_input(x, mask)
    assert (tokens.shape, places.tolist(), bounds.tolist(), longest) == ((3, 2), [0, 1, 3], [0, 2, 3], 2)
    assert used.tolist() == [2, 1]
    padded = pad_input(tokens, places, 2, 3)
    assert padded.tolist() == (x * mask.unsqueeze(-1)).tolist()
    padded.sum().backward()
    assert x.grad.sum().item() == 6


@on_gpu()
def test_padding_has_the_names_of_einops():
    pytest.importorskip("einops")
    from flash_attn.bert_padding import rearrange

    assert rearrange(torch.zeros(2, 3, 4, device="cuda"), "b s d -> (b s) d").shape == (6, 4)


def _layers() -> None:
    from flash_attn.layers.rotary import RotaryEmbedding, apply_rotary_emb
    from flash_attn.losses.cross_entropy import CrossEntropyLoss
    from flash_attn.ops.triton.layer_norm import RMSNorm, layer_norm_fn

    x: Any = torch.empty(4, 512, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    norm = RMSNorm(1024, device="cuda", dtype=torch.bfloat16)
    y, total = norm(x, residual=x.detach().float(), prenorm=True)
    assert (y.dtype, total.dtype) == (torch.bfloat16, torch.float32)
    (y + total).sum().backward()
    assert x.grad.shape == x.shape
    assert norm.weight.grad.shape == norm.weight.shape
    assert layer_norm_fn(x, norm.weight, norm.weight).shape == x.shape
    angles = torch.empty(512, 32, device="cuda")
    q = x.unflatten(-1, (16, 64))
    apply_rotary_emb(q, angles, angles).sum().backward()
    qkv = torch.empty(4, 512, 3, 16, 64, device="cuda", requires_grad=True)
    RotaryEmbedding(64, device="cuda")(qkv * 1).sum().backward()
    logits = torch.empty(2048, 32000, device="cuda", requires_grad=True)
    loss = CrossEntropyLoss(inplace_backward=True)(logits, torch.zeros(2048, device="cuda", dtype=torch.int64))
    (grad,) = torch.autograd.grad(loss, logits)
    assert grad.data_ptr() == logits.data_ptr()


@pytest.mark.skipif(find_spec("flash_attn") is not None, reason="the installed package's own kernels are Triton's")
def test_fused_layers_are_one_kernel_each_way():
    operators = [op for op in rehearse(_layers).trace.rank(0).operators() if "flash_attn::" in op.signature.op]
    assert [op.signature.op.removeprefix("flash_attn::") for op in operators] == [
        "layer_norm",
        "layer_norm_backward",
        "layer_norm",
        "rotary",
        "rotary_backward",
        "rotary",
        "rotary_backward",
        "cross_entropy",
        "cross_entropy_backward",
    ]
    work = operators[0].signature.work
    assert work is not None
    assert work.family == "normalisation"


@on_gpu()
def test_rotary_embedding_of_a_subclass_makes_its_own_angles_and_heads_may_be_packed_in_one_dimension():
    from flash_attn.layers.rotary import RotaryEmbedding

    class Stretched(RotaryEmbedding):  # type: ignore[misc]
        _seq_len_cached: int

        def _update_cos_sin_cache(self, seqlen: int, device: Any = None, dtype: Any = None) -> None:
            if seqlen > self._seq_len_cached and self.scale is None:
                self._seq_len_cached = seqlen
                angles = torch.outer(torch.arange(seqlen, device=device) / 2, self._compute_inv_freq(device=device))
                self._cos_cached, self._sin_cached = angles.cos().to(dtype), angles.sin().to(dtype)

    queries, pairs = 8, 2
    qkv = torch.empty(1, 512, queries + 2 * pairs, 64, device="cuda", requires_grad=True)
    rotary = Stretched(64, device="cuda")
    result = rotary(qkv * 1, num_heads_q=queries)
    result.sum().backward()
    assert result.shape == qkv.shape
    assert rotary._seq_len_cached == 512


@pytest.mark.skipif(find_spec("flash_attn") is not None, reason="the installed package's is a kernel of Triton")
@on_gpu()
def test_attention_with_a_bias_is_differentiable():
    from flash_attn.flash_attn_triton import flash_attn_func

    q, k, v = _tensors(heads_k=HEADS)
    bias = torch.empty(1, HEADS, 1, LENGTH, device="cuda", dtype=torch.bfloat16)
    flash_attn_func(q, k, v, bias, True, 0.125).sum().backward()
    assert [x.grad.shape for x in (q, k, v)] == [x.shape for x in (q, k, v)]


def _gather_and_scatter() -> None:
    from torch import distributed as dist

    from sandtable.vgpu.packages.flash_attn import distributed

    dist.init_process_group("nccl")
    group: Any = dist.group.WORLD
    x: Any = torch.full((4, 8), 1.0 + dist.get_rank(), device="cuda", requires_grad=True)
    gathered = distributed.all_gather(x, group)
    assert gathered[:, 0].tolist() == [1.0] * 4 + [2.0] * 4
    part = distributed.reduce_scatter(gathered, group)
    assert part[0, 0].item() == 2 * (1.0 + dist.get_rank())
    distributed.all_reduce(part, group).sum().backward()
    assert x.grad[0, 0].item() == 2.0
    assert [distributed.get_dim_for_local_rank(10, 4, rank, multiple_of=2) for rank in range(4)] == [4, 2, 2, 2]


def test_collectives_have_each_other_as_backward_pass():
    trace = rehearse(_gather_and_scatter, ranks=2).trace
    assert [str(call.op) for call in trace.rank(0).collectives()] == [
        *("all_gather", "reduce_scatter", "all_reduce"),
        *("all_gather", "reduce_scatter"),
    ]


def _call_extensions() -> None:
    import dropout_layer_norm
    import rotary_emb
    import xentropy_cuda_lib

    x = torch.empty(64, 8, 128, device="cuda", dtype=torch.bfloat16)
    angles = torch.empty(64, 1, 64, device="cuda", dtype=torch.bfloat16)
    first, second = x.chunk(2, dim=-1)
    rotary_emb.apply_rotary(first, second, angles, angles, first, second, False)

    rows, gamma = x.view(64, 1024), torch.ones(1024, device="cuda")
    none = (None, None, None, None)
    out, total, mask, mu, rsigma = dropout_layer_norm.dropout_add_ln_fwd(
        rows, None, gamma, None, *none, 0.0, 1e-5, 1.0, 0, None, False, True
    )
    assert (out.dtype, total, mask) == (torch.bfloat16, None, None)
    dx, dresidual, dgamma, _, sums, _ = dropout_layer_norm.dropout_add_ln_bwd(
        out, None, rows, None, None, mu, rsigma, gamma, *none, 0.0, 1.0, 0, False, True
    )
    assert (dx.shape, dresidual, dgamma.shape, sums.shape[1]) == (rows.shape, None, gamma.shape, 1024)
    _, total, *_ = dropout_layer_norm.dropout_add_ln_fwd(
        rows, rows.float(), gamma, gamma, *none, 0.1, 1e-5, 1.0, 0, None, False, False
    )
    assert total.dtype == torch.float32

    labels = torch.zeros(64, device="cuda", dtype=torch.int64)
    losses, lse = xentropy_cuda_lib.forward(rows, labels, 0.0)
    assert xentropy_cuda_lib.backward(losses, rows, lse, labels, 0.0, True) is rows


def test_compiled_modules_of_older_releases_are_kernels():
    names = [
        op.signature.op.removeprefix("flash_attn::")
        for op in rehearse(_call_extensions).trace.rank(0).operators()
        if op.signature.op.startswith("flash_attn::")
    ]
    assert names == [
        "apply_rotary",
        "dropout_add_rms_norm",
        "dropout_add_rms_norm_backward",
        "dropout_add_rms_norm_backward_finalize",
        "dropout_add_layer_norm",
        "xentropy",
        "xentropy_backward",
    ]


def _compile_layers() -> None:
    from flash_attn import flash_attn_varlen_func

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            x = x.view(-1, HEADS, SIZE)
            out: torch.Tensor = flash_attn_varlen_func(x, x, x, bounds, bounds, 700, 700, causal=True)
            return out.flatten(1)

    bounds = torch.tensor([0, 300, 1000], device="cuda", dtype=torch.int32)
    x: Any = torch.empty(1000, HEADS * SIZE, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    y = x
    for layer in (Layer(), Layer()):
        layer.compile()
        y = layer(y, bounds)
    y.sum().backward()


def test_attention_in_compiled_layers_is_the_same_operators():
    names = [op.signature.op for op in rehearse(_compile_layers).trace.rank(0).operators()]
    assert names.count("flash_attn::_flash_attn_varlen_forward") == 2
    assert names.count("flash_attn::_flash_attn_varlen_backward") == 2
