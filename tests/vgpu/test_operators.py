"""Operators on the virtual GPU: shapes, types and errors as elsewhere, and values where they are known."""

# Bodies are scripts: they use torch as scripts do, which is more than its annotations know.
# mypy: disable-error-code="arg-type,index,union-attr"

import copy
import functools
import io
import json
import pickle
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.vgpu.cases import CASES, Maker
from tests.vgpu.virtual import on_gpu, rehearse
from torch import nn
from torch.utils.checkpoint import checkpoint

from sandtable.trace import Phase
from sandtable.vgpu.preload import loaded_core

CARD = torch.device("cuda:0")


def tensors_of(result) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else [tensor for part in result for tensor in tensors_of(part)]


def run_case(name: str, make: Maker) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    outputs = tensors_of(CASES[name](make))
    losses = [output.sum() for output in outputs if output.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    return outputs, [leaf.grad for leaf in make.leaves]


def check_case(name: str) -> None:
    expected, expected_grads = run_case(name, Maker("cpu"))
    outputs, grads = run_case(name, Maker("cuda"))
    unknown, unknown_grads = run_case(name, Maker("cuda", is_known=False))
    assert len(outputs) == len(unknown) == len(expected)
    for got, blank, wanted in zip(outputs, unknown, expected, strict=True):
        assert got.device == blank.device == CARD
        assert got.shape == blank.shape == wanted.shape, (got.shape, blank.shape, wanted.shape)
        assert got.dtype == blank.dtype == wanted.dtype, (got.dtype, blank.dtype, wanted.dtype)
        assert torch.isfinite(blank.cpu()).all(), "not finite"
        check_value(got, wanted)
    for grad, blank_grad, wanted_grad in zip(grads, unknown_grads, expected_grads, strict=True):
        assert (grad is None) == (blank_grad is None) == (wanted_grad is None), "gradient there or not"
        if grad is not None and blank_grad is not None and wanted_grad is not None:
            assert grad.device == blank_grad.device == CARD
            assert grad.shape == blank_grad.shape == wanted_grad.shape
            check_value(grad, wanted_grad)


def check_value(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """A value that is known is right. Not every operator has a kernel on the host that could tell it."""
    if loaded_core().has_exact_value(got):
        torch.testing.assert_close(got.detach().cpu(), wanted.detach(), rtol=1e-3, atol=1e-4)


def print_verdict(name: str, check: Callable[[], None]) -> None:
    try:
        check()
    except Exception as error:
        print(json.dumps([name, "".join(traceback.format_exception(error))[-3000:]]))
    else:
        print(json.dumps([name, ""]))


def check_cases() -> None:
    for name in CASES:
        print_verdict(name, functools.partial(check_case, name))


def check_optimizers() -> None:
    for name, kind in OPTIMIZERS.items():
        print_verdict(name, functools.partial(check_optimizer, *kind))


@functools.cache
def verdicts(check: Callable[[], None]) -> dict[str, str]:
    """What became of each case. All run in one rank: there are hundreds."""
    return dict(json.loads(text) for _, text in rehearse(check).out)


@pytest.mark.parametrize("name", sorted(CASES))
def test_operator_gives_what_the_host_gives(name):
    if problem := verdicts(check_cases)[name]:
        pytest.fail(problem, pytrace=False)


# ---- making tensors ----


@on_gpu()
def test_every_factory_makes_a_tensor_on_the_card():
    made = [
        torch.empty(2, 3, device=CARD),
        torch.zeros(2, 3, device=CARD),
        torch.ones(2, 3, device=CARD),
        torch.full((2, 3), 7.0, device=CARD),
        torch.rand(2, 3, device=CARD),
        torch.randn(2, 3, device=CARD),
        torch.randint(0, 5, (2, 3), device=CARD),
        torch.arange(6, device=CARD).view(2, 3),
        torch.linspace(0, 1, 6, device=CARD).view(2, 3),
        torch.logspace(0, 1, 6, device=CARD).view(2, 3),
        torch.eye(2, 3, device=CARD),
        torch.tensor([[1, 2, 3], [4, 5, 6]], device=CARD),
        torch.as_tensor([[1, 2, 3], [4, 5, 6]], device=CARD),
        torch.empty_strided((2, 3), (3, 1), device=CARD),
        torch.randn(2, 3).cuda(),
        torch.randn(2, 3).to("cuda"),
        torch.randn(2, 3, dtype=torch.float64).to(CARD, torch.bfloat16),
        torch.tril_indices(3, 3, device=CARD)[:, :3],
    ]
    made += [
        torch.zeros_like(made[0]),
        torch.randn_like(made[1]),
        made[0].new_zeros(2, 3),
        made[0].new_tensor([[1.0] * 3] * 2),
    ]
    assert all(tensor.shape == (2, 3) and tensor.device == CARD and tensor.is_cuda for tensor in made)
    assert made[3].tolist() == [[7.0] * 3] * 2
    assert made[7].flatten().tolist() == list(range(6))
    assert torch.arange(0, 1, 0.25, device=CARD).tolist() == [0, 0.25, 0.5, 0.75]


@on_gpu()
def test_default_device_can_be_the_card():
    torch.set_default_device("cuda")
    assert torch.ones(2).is_cuda
    assert nn.Linear(2, 2).weight.is_cuda
    assert torch.randperm(4).is_cuda


@on_gpu()
def test_initialisers_fill_parameters_on_the_card():
    weight = torch.empty(64, 64, device=CARD)
    for fill in (
        nn.init.xavier_uniform_,
        nn.init.kaiming_normal_,
        nn.init.orthogonal_,
        nn.init.trunc_normal_,
        nn.init.zeros_,
        nn.init.eye_,
    ):
        assert fill(weight) is weight
    nn.init.normal_(weight[:4], std=0.02)
    small = nn.init.constant_(torch.empty(4, device=CARD), 3.0)
    assert small.tolist() == [3.0] * 4
    with torch.device("meta"):
        model = nn.Linear(128, 128)
    model.to_empty(device="cuda").reset_parameters()
    assert model.weight.is_cuda


# ---- views, in-place, out= ----


@on_gpu()
def test_views_alias_and_in_place_operators_write_through_them():
    x = torch.zeros(4, 4, device=CARD)
    x[1].fill_(2)
    x[:, 2] += 1
    x.view(16)[0] = 9
    x.t()[3, 0] = 5
    assert x.tolist() == [[9, 0, 1, 5], [2, 2, 3, 2], [0, 0, 1, 0], [0, 0, 1, 0]]
    assert x.view(2, 8).data_ptr() == x.data_ptr()
    assert x[1].storage_offset() == 4
    assert x._is_view() is False
    assert x[1]._base is x
    assert x.t().is_contiguous() is False
    assert x.t().contiguous().is_contiguous()
    assert x.t().stride() == (1, 4)
    assert x.as_strided((2, 2), (4, 2)).tolist() == [[9, 1], [2, 3]]
    version = x._version
    x.mul_(2)
    assert x._version == version + 1
    assert x.clone().data_ptr() != x.data_ptr()


@on_gpu()
def test_in_place_change_of_a_saved_tensor_is_found_in_backward():
    x = torch.ones(3, device=CARD, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x.add_(1)


@on_gpu()
def test_out_variants_write_and_resize_their_output():
    a, b = torch.tensor([1.0, 2.0], device=CARD), torch.tensor([3.0, 4.0], device=CARD)
    out = torch.empty(2, device=CARD)
    assert torch.add(a, b, out=out) is out
    assert out.tolist() == [4, 6]
    grown = torch.empty(0, device=CARD)
    torch.mul(a, b, out=grown)
    assert grown.tolist() == [3, 8]
    torch.cat([a, b], out=grown.resize_(4))
    assert grown.tolist() == [1, 2, 3, 4]
    product = torch.empty(2, 2, device=CARD)
    torch.mm(a.view(2, 1), b.view(1, 2), out=product)
    assert product.tolist() == [[3, 4], [6, 8]]


@on_gpu()
def test_index_put_and_assignment_by_mask_write_in_place():
    x = torch.zeros(4, device=CARD)
    x[torch.tensor([0, 2], device=CARD)] = 5.0
    x.index_put_((torch.tensor([0, 0], device=CARD),), torch.tensor([1.0, 1.0], device=CARD), accumulate=True)
    x[x == 0] = -1
    x[torch.tensor([True, False, False, False])] += 0.5
    assert x.tolist() == [7.5, -1, 5, -1]
    big = torch.zeros(1 << 16, device=CARD)
    big[big > 0.5] = 1
    big[torch.arange(0, 100, device=CARD)] = 3
    big.masked_fill_(big > 2, 0)
    big.masked_scatter_(big > 2, torch.ones(1 << 16, device=CARD))


# ---- autograd ----


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))


@on_gpu()
def test_a_step_of_a_small_model_has_the_hosts_gradients():
    model = small_model()
    twin = copy.deepcopy(model).cuda()
    x = torch.rand(5, 4)
    model(x).square().mean().backward()
    twin(x.cuda()).square().mean().backward()
    for ours, theirs in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


@on_gpu()
def test_double_backward_works():
    x = torch.tensor([1.0, 2.0], device=CARD, requires_grad=True)
    (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    grad.sum().backward()
    assert x.grad.tolist() == [6, 12]
    conv = nn.Conv2d(2, 3, 3).cuda()
    image = torch.rand(1, 2, 16, 16, device=CARD, requires_grad=True)
    (grad,) = torch.autograd.grad(conv(image).sum(), image, create_graph=True)
    grad.square().sum().backward()
    assert conv.weight.grad.shape == conv.weight.shape


@on_gpu()
def test_functional_transforms_work():
    from torch.func import functional_call, grad, hessian, jacrev, vmap

    assert grad(lambda x: (x**2).sum())(torch.tensor([3.0], device=CARD)).tolist() == [6]
    rows = vmap(torch.dot)(torch.ones(5, 3, device=CARD), torch.ones(5, 3, device=CARD))
    assert rows.tolist() == [3] * 5
    assert jacrev(torch.sin)(torch.zeros(3, device=CARD)).diagonal().tolist() == [1, 1, 1]
    assert hessian(lambda x: (x**2).sum())(torch.ones(2, device=CARD)).tolist() == [[2, 0], [0, 2]]
    model = small_model().cuda()
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        return functional_call(model, parameters, (x.unsqueeze(0),)).sum()

    per_sample = vmap(grad(loss), in_dims=(None, 0))(parameters, torch.rand(6, 4, device=CARD))
    assert per_sample["0.weight"].shape == (6, 8, 4)


@on_gpu()
def test_custom_autograd_functions_and_hooks_run():
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            assert ctx.saved_tensors[0].is_cuda
            return grad * 2

    x = torch.ones(3, device=CARD, requires_grad=True)
    x.register_hook(lambda grad: seen.append(grad.tolist()))
    x.register_post_accumulate_grad_hook(lambda tensor: seen.append("accumulated"))
    Double.apply(x).sum().backward()
    assert seen == [[2, 2, 2], "accumulated"]
    model = small_model().cuda()
    model[0].register_full_backward_hook(lambda *_: seen.append("module"))
    model(torch.rand(2, 4, device=CARD)).sum().backward()
    assert seen[-1] == "module"


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers_are_computed_again_in_backward(reentrant):
    plain = operator_counts(False, reentrant)
    checked = operator_counts(True, reentrant)
    assert checked["aten::gelu"] == 2 * plain["aten::gelu"]
    assert checked["aten::gelu_backward"] == plain["aten::gelu_backward"]


def operator_counts(is_checkpointed: bool, reentrant: bool) -> dict[str, int]:
    done = rehearse(run_layers, arguments={"is_checkpointed": is_checkpointed, "reentrant": reentrant})
    counts: dict[str, int] = {}
    for operator in done.trace.rank(0).operators():
        counts[operator.signature.op] = counts.get(operator.signature.op, 0) + 1
    return counts


def run_layers(is_checkpointed: bool, reentrant: bool) -> None:
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)).cuda() for _ in range(3)]
    x = torch.rand(32, 64, device=CARD, requires_grad=True)
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=reentrant) if is_checkpointed else layer(x)
    x.sum().backward()
    assert all(layer[0].weight.grad is not None for layer in layers)


class _Product(torch.autograd.Function):
    """A product whose forward, like every function's, runs with gradients off."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad


def run_functions(reentrant: bool) -> None:
    weight = torch.rand(64, 64, device=CARD, requires_grad=True)
    x = torch.rand(32, 64, device=CARD, requires_grad=True)
    checkpoint(
        lambda y: _Product.apply(_Product.apply(y, weight).relu(), weight), x, use_reentrant=reentrant
    ).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_function_run_again_in_backward_is_recompute_and_its_backward_is_not(reentrant):
    trace = rehearse(run_functions, arguments={"reentrant": reentrant}).trace
    products = [op.phase for op in trace.rank(0).operators() if op.signature.name == "aten::mm"]
    assert Counter(products) == {Phase.FORWARD: 2, Phase.RECOMPUTE: 2, Phase.BACKWARD: 4}


@on_gpu()
def test_saved_activations_can_be_offloaded_to_the_host():
    layer = nn.Linear(64, 64).cuda()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        layer(torch.rand(32, 64, device=CARD)).relu().sum().backward()
    assert layer.weight.grad.shape == (64, 64)


@on_gpu()
def test_anomaly_mode_and_gradient_checks_work():
    x = torch.rand(3, device=CARD, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(torch.sin, (x,))
    with torch.autograd.detect_anomaly(check_nan=True):
        model = small_model().cuda()
        model(torch.rand(1024, 4, device=CARD)).sum().backward()


# ---- optimizers ----


def optimizer_kinds() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every optimizer, each way it can work."""
    for name in (
        "SGD",
        "Adam",
        "AdamW",
        "NAdam",
        "RAdam",
        "Adamax",
        "Adagrad",
        "Adadelta",
        "RMSprop",
        "Rprop",
        "ASGD",
        "Adafactor",
    ):
        options: dict[str, Any] = {"momentum": 0.9} if name == "SGD" else {}
        yield name, {**options, "foreach": False}
        yield name, {**options, "foreach": True}
        if name in ("SGD", "Adam", "AdamW", "Adagrad"):
            yield name, {**options, "fused": True}
        if name in ("Adam", "AdamW", "RMSprop", "NAdam"):
            yield name, {**options, "capturable": True}
    yield "LBFGS", {}
    yield "Muon", {}


OPTIMIZERS = {
    f"{name}-{'-'.join(f'{k}={v}' for k, v in options.items())}": (name, options) for name, options in optimizer_kinds()
}


def check_optimizer(name: str, options: dict[str, Any]) -> None:
    """Small parameters take the values they would take on the host; large ones are updated too."""
    results = []
    for device in ("cpu", "cuda"):
        chosen = {
            key: value for key, value in options.items() if device == "cuda" or key not in ("fused", "capturable")
        }
        parameter = nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4).to(device))
        take_steps(getattr(torch.optim, name)([parameter], **chosen), parameter)
        results.append(parameter.detach())
    large = nn.Parameter(torch.zeros(64, 64, device="cuda"))
    take_steps(getattr(torch.optim, name)([large], **options), large)
    assert loaded_core().has_exact_value(results[1]), "a small parameter's value is lost"
    check_value(results[1], results[0])


def take_steps(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.step(closure)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_optimizer_updates_small_parameters_as_on_the_host(name):
    if problem := verdicts(check_optimizers)[name]:
        pytest.fail(problem, pytrace=False)


def fused_steps() -> None:
    model = nn.Linear(256, 256).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.rand(8, 256, device=CARD)).sum().backward()
    optimizer.step()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    optimizer.step()


def test_fused_and_foreach_optimizers_are_recorded_as_what_they_launch():
    ops = [operator.signature.op for operator in rehearse(fused_steps).trace.rank(0).operators()]
    assert ops.count("aten::_fused_adamw_") == 1
    assert "aten::_foreach_addcdiv_" in ops or any(op.startswith("aten::_foreach_") for op in ops)


@on_gpu()
def test_the_default_optimizer_on_the_card_is_foreach():
    from torch.optim.optimizer import _default_to_fused_or_foreach

    assert _default_to_fused_or_foreach([nn.Parameter(torch.ones(2, device=CARD))], False) == (False, True)


@on_gpu()
def test_gradients_are_clipped_and_their_norm_known_when_small():
    parameter = nn.Parameter(torch.zeros(2, device=CARD))
    parameter.grad = torch.tensor([3.0, 4.0], device=CARD)
    assert nn.utils.clip_grad_norm_([parameter], 1.0).item() == 5
    torch.testing.assert_close(parameter.grad.cpu(), torch.tensor([0.6, 0.8]))
    nn.utils.clip_grad_value_([parameter], 0.5)
    large = nn.Parameter(torch.zeros(1 << 16, device=CARD))
    large.grad = torch.randn(1 << 16, device=CARD)
    norm = nn.utils.clip_grad_norm_([parameter, large], 1.0, error_if_nonfinite=True)
    assert norm.isfinite()


@on_gpu()
def test_learning_rate_schedules_and_ema_work():
    model = small_model().cuda()
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    for _ in range(4):
        optimizer.step()
        schedule.step()
        averaged.update_parameters(model)
    assert schedule.get_last_lr()[0] < 1e-6
    assert averaged.n_averaged.item() == 4


# ---- sparse gradients ----


@pytest.mark.parametrize("kind", ["SGD", "SparseAdam", "Adagrad"])
@on_gpu()
def test_sparse_gradients_of_an_embedding_are_applied(kind: str):
    for rows in (10, 10_000):
        table = nn.Embedding(rows, 8, sparse=True).cuda()
        optimizer = getattr(torch.optim, kind)(table.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            table(torch.tensor([1, 2, 2, 5], device=CARD)).sum().backward()
            grad = table.weight.grad
            assert grad.is_sparse
            assert grad.shape == (rows, 8)
            assert grad._values().shape[1] == 8
            optimizer.step()
    bag = nn.EmbeddingBag(1000, 8, sparse=True).cuda()
    bag(torch.tensor([[1, 2], [3, 4]], device=CARD)).sum().backward()
    assert bag.weight.grad.is_sparse
    assert bag.weight.grad.coalesce().values().shape[1] == 8
    assert bag.weight.grad.to_dense().shape == (1000, 8)


@on_gpu()
def test_sparse_matrices_multiply():
    indices = torch.tensor([[0, 1], [1, 0]], device=CARD)
    sparse = torch.sparse_coo_tensor(indices, torch.tensor([2.0, 3.0], device=CARD), (2, 2))
    assert sparse.device == CARD
    assert torch.sparse.mm(sparse, torch.ones(2, 4, device=CARD)).shape == (2, 4)
    assert sparse.to_dense().shape == (2, 2)


# ---- attention as the card would choose ----


def attend(dtype: torch.dtype, head: int, mask: bool, off: list[str]) -> None:
    for name in off:
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(False)
    q, k, v = (torch.rand(2, 4, 128, head, device=CARD, dtype=dtype, requires_grad=True) for _ in range(3))
    attn_mask = torch.ones(128, 128, dtype=torch.bool, device=CARD) if mask else None
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=not mask)
    assert out.shape == (2, 4, 128, head)
    assert out.dtype == dtype
    out.sum().backward()
    assert q.grad.shape == q.shape


ATTENTION = [
    ("dgx-a100", torch.bfloat16, 64, False, [], "flash"),
    ("dgx-a100", torch.float16, 64, False, [], "flash"),
    ("dgx-a100", torch.float32, 64, False, [], "efficient"),
    ("dgx-a100", torch.bfloat16, 64, True, [], "efficient"),
    ("dgx-a100", torch.bfloat16, 512, False, [], "efficient"),
    ("dgx-a100", torch.bfloat16, 64, False, ["flash"], "efficient"),
    ("dgx-a100", torch.bfloat16, 64, False, ["flash", "mem_efficient"], "math"),
    ("dgx-a100", torch.float64, 64, False, [], "math"),
    ("dgx-h100", torch.bfloat16, 64, False, ["cudnn"], "flash"),
    ("dgx-h100", torch.bfloat16, 64, True, ["flash", "mem_efficient"], "cudnn"),
    ("dgx1-v100", torch.float16, 64, False, [], "efficient"),
    ("dgx1-v100", torch.bfloat16, 64, False, [], "math"),
]


@pytest.mark.parametrize(("cluster", "dtype", "head", "mask", "off", "chosen"), ATTENTION)
def test_attention_is_the_kernel_the_card_would_choose(cluster, dtype, head, mask, off, chosen):
    arguments = {"dtype": dtype, "head": head, "mask": mask, "off": off}
    ops = {
        operator.signature.op
        for operator in rehearse(attend, cluster=cluster, arguments=arguments).trace.rank(0).operators()
    }
    kernels = {kind: f"aten::_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn")}
    assert {kind for kind, op in kernels.items() if op in ops} == ({chosen} - {"math"})
    assert ("aten::bmm" in ops) == (chosen == "math")
    if chosen != "math":
        assert f"{kernels[chosen]}_backward" in ops


@on_gpu()
def test_a_kernel_can_be_asked_for_by_name():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.rand(1, 2, 64, 32, device=CARD, dtype=torch.bfloat16)
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH):
        with sdpa_kernel(backend):
            assert F.scaled_dot_product_attention(q, q, q).shape == q.shape
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match=r"No available kernel|No viable"):
        F.scaled_dot_product_attention(q.float(), q.float(), q.float())


@on_gpu()
def test_flex_attention_runs_eagerly():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q = torch.rand(1, 2, 128, 16, device=CARD, requires_grad=True)
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 128, 128, device="cuda")
    out = flex_attention(q, q, q, block_mask=mask)
    out.sum().backward()
    assert out.shape == q.shape
    assert q.grad.shape == q.shape


# ---- number formats ----


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@on_gpu()
def test_layers_work_in_every_float_format(dtype: torch.dtype):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).to(
        CARD, dtype
    )
    out = model(torch.rand(2, 3, 8, 8, device=CARD, dtype=dtype))
    assert out.dtype == dtype
    out.sum().backward()
    assert {parameter.grad.dtype for parameter in model.parameters()} == {dtype}
    assert torch.ones(2, device=CARD, dtype=dtype).add(1).tolist() == [2, 2]


@on_gpu(cluster="dgx-h100")
def test_float8_matrices_are_scaled_and_multiplied():
    a = torch.rand(64, 32, device=CARD).to(torch.float8_e4m3fn)
    b = torch.rand(16, 32, device=CARD).to(torch.float8_e4m3fn).t()
    one = torch.tensor(1.0, device=CARD)
    out = torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    assert out.shape == (64, 16)
    assert out.dtype == torch.bfloat16
    rows = torch._scaled_mm(
        a, b, scale_a=torch.ones(64, 1, device=CARD), scale_b=torch.ones(1, 16, device=CARD), out_dtype=torch.bfloat16
    )
    assert rows.shape == (64, 16)
    grad = torch._scaled_mm(
        a.to(torch.float32).to(torch.float8_e5m2), b, scale_a=one, scale_b=one, out_dtype=torch.float32
    )
    assert grad.dtype == torch.float32
    assert a.element_size() == 1


@on_gpu()
def test_integers_bools_and_type_promotion_follow_torch():
    x = torch.arange(4, device=CARD)
    assert (x + 1.5).dtype == torch.float32
    assert (x / 2).dtype == torch.float32
    assert (x // 2).tolist() == [0, 0, 1, 1]
    assert (x.half() + x.double()).dtype == torch.float64
    assert (x > 1).dtype == torch.bool
    assert (x.to(torch.uint8) << 1).tolist() == [0, 2, 4, 6]
    assert (torch.ones(2, device=CARD, dtype=torch.float16) * torch.tensor(2.0)).dtype == torch.float16
    assert x.to(torch.complex64).dtype == torch.complex64


@on_gpu()
def test_quantised_integer_matmul_has_its_shape():
    a = torch.ones(32, 64, dtype=torch.int8, device=CARD)
    assert torch._int_mm(a, torch.ones(64, 16, dtype=torch.int8, device=CARD)).shape == (32, 16)


# ---- dropout and randomness ----


@on_gpu()
def test_dropout_keeps_shapes_and_is_off_in_eval():
    x = torch.ones(8, 8, device=CARD, requires_grad=True)
    for drop in (nn.Dropout(0.5), nn.Dropout1d(0.5), nn.AlphaDropout(0.5), nn.FeatureAlphaDropout(0.5)):
        drop(x).sum().backward()
        assert drop.eval()(x).tolist() == x.tolist()
    kept = F.dropout(torch.ones(64, device=CARD), 0.5).tolist()
    assert set(kept) == {0.0, 2.0}
    assert nn.Dropout2d()(torch.ones(2, 3, 4, 4, device=CARD)).shape == (2, 3, 4, 4)
    assert F.rrelu(torch.ones(4, device=CARD), training=True).shape == (4,)


@on_gpu()
def test_distributions_draw_on_the_card():
    from torch.distributions import Bernoulli, Beta, Categorical, Dirichlet, Gamma, Normal

    probabilities = torch.tensor([0.0, 1.0, 0.0], device=CARD)
    assert torch.multinomial(probabilities, 1).item() == 1
    assert Categorical(probs=probabilities).sample().item() == 1
    ones = torch.ones(5, device=CARD)
    for distribution in (
        Normal(ones, ones),
        Gamma(ones, ones),
        Beta(ones, ones),
        Dirichlet(ones),
        Bernoulli(ones * 0.5),
    ):
        drawn = distribution.sample()
        assert drawn.is_cuda
        assert distribution.log_prob(drawn).is_cuda
    assert torch.bernoulli(ones * 0.5).shape == (5,)
    assert torch.poisson(ones).shape == (5,)
    assert torch.normal(ones, ones).shape == (5,)
    assert F.gumbel_softmax(torch.rand(4, 5, device=CARD), hard=True).shape == (4, 5)
    large = torch.rand(64, 50_000, device=CARD)
    assert torch.multinomial(large, 1).max().item() < 50_000


# ---- errors equal to real ones ----


@on_gpu()
def test_host_and_card_do_not_mix():
    card, host = torch.ones(3, device=CARD), torch.ones(3)
    message = r"Expected all tensors to be on the same device.*(cuda:0.*(cpu|cuda:1)|(cpu|cuda:1).*cuda:0)"
    for mix in (
        lambda: card + host,
        lambda: host + card,
        lambda: torch.mm(card.view(1, 3), host.view(3, 1)),
        lambda: torch.cat([card, host]),
        lambda: nn.Linear(3, 3)(card),
        lambda: nn.Linear(3, 3).cuda()(host),
        lambda: F.embedding(torch.tensor([0]), card.view(3, 1)),
        lambda: torch.ones(3, device="cuda:1") + card,
    ):
        with pytest.raises(RuntimeError, match=message):
            mix()
    assert (card + torch.tensor(1.0)).tolist() == [2, 2, 2]
    assert (torch.tensor(1.0) * card).is_cuda
    with pytest.raises(RuntimeError):
        torch.tensor([1.0]).add_(torch.ones(1, device=CARD))


WRONG: dict[str, Callable[[str], object]] = {
    "matmul": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "add": lambda d: torch.ones(2, device=d) + torch.ones(3, device=d),
    "view": lambda d: torch.ones(2, 3, device=d).view(7),
    "cat": lambda d: torch.cat([torch.ones(2, 3, device=d), torch.ones(2, 4, device=d)]),
    "index": lambda d: torch.ones(4, 4, device=d)[5],
    "linear": lambda d: nn.Linear(3, 2).to(d)(torch.ones(2, 4, device=d)),
    "conv2d": lambda d: nn.Conv2d(3, 4, 3).to(d)(torch.ones(1, 2, 8, 8, device=d)),
    "layer_norm": lambda d: F.layer_norm(torch.ones(2, 3, device=d), (4,)),
    "sum_dim": lambda d: torch.ones(2, 3, device=d).sum(dim=4),
    "copy": lambda d: torch.ones(3, device=d).copy_(torch.ones(2, device=d)),
    "cross_entropy": lambda d: F.cross_entropy(torch.ones(2, 3, device=d), torch.ones(3, device=d, dtype=torch.long)),
    "bmm": lambda d: torch.bmm(torch.ones(2, 3, 4, device=d), torch.ones(3, 4, 5, device=d)),
    "item": lambda d: torch.ones(3, device=d).item(),
    "expand": lambda d: torch.ones(2, 3, device=d).expand(4, 3),
    "stack": lambda d: torch.stack([torch.ones(2, device=d), torch.ones(3, device=d)]),
    "backward": lambda d: torch.ones(2, device=d).backward(),
    "bool": lambda d: bool(torch.ones(2, device=d)),
    "max_pool": lambda d: F.max_pool2d(torch.ones(1, 1, 1, 1, device=d), 3),
}


def check_wrong_shapes() -> None:
    for name in WRONG:
        print_verdict(name, functools.partial(check_wrong_shape, name))


def check_wrong_shape(name: str) -> None:
    messages = []
    for device in ("cpu", "cuda"):
        try:
            WRONG[name](device)
        except (RuntimeError, IndexError, ValueError) as error:
            messages.append((type(error), str(error).splitlines()[0]))
    assert messages[0] == messages[1], messages


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_shape_raises_what_the_host_raises(name):
    if problem := verdicts(check_wrong_shapes)[name]:
        pytest.fail(problem, pytrace=False)


@on_gpu()
def test_a_known_index_out_of_range_is_found():
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)|device-side assert"):
        F.embedding(torch.tensor([12], device=CARD), torch.ones(10, 4, device=CARD))
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)|device-side assert"):
        torch.ones(5, device=CARD)[torch.tensor([7], device=CARD)]
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)|device-side assert"):
        F.embedding(torch.tensor([60_000], device=CARD), torch.ones(50_000, 64, device=CARD))


@on_gpu()
def test_a_virtual_tensor_is_not_a_numpy_array():
    with pytest.raises(TypeError, match=r"can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu\(\)"):
        torch.ones(3, device=CARD).numpy()
    assert torch.ones(3, device=CARD).cpu().numpy().tolist() == [1, 1, 1]


# ---- operators of other libraries ----


@on_gpu()
def test_an_operator_without_a_shape_is_named_with_its_line_and_the_remedy():
    library = torch.library.Library("mylib", "DEF")
    library.define("mystery(Tensor x, int n) -> Tensor")
    with pytest.raises(NotImplementedError) as caught:
        torch.ops.mylib.mystery(torch.ones(4, device=CARD), 3)
    text = str(caught.value)
    assert "mylib::mystery" in text
    assert f"{__file__}:" in text
    assert "sandtable.vgpu.register_shape('mylib::mystery'" in text


@on_gpu()
def test_a_registered_shape_makes_an_unknown_operator_work():
    from sandtable.vgpu import register_shape

    library = torch.library.Library("mylib", "DEF")
    library.define("widen(Tensor x, int n) -> Tensor")
    library.define("halves(Tensor x) -> (Tensor, Tensor)")
    register_shape("mylib::widen", lambda x, n: x.new_empty(x.shape[0], n))
    register_shape("mylib::halves", lambda x: (x.new_empty(x.shape[0] // 2), x.new_empty(x.shape[0] // 2)))
    out = torch.ops.mylib.widen(torch.ones(4, device=CARD), 3)
    assert out.shape == (4, 3)
    assert out.device == CARD
    first, second = torch.ops.mylib.halves(torch.ones(4, device=CARD))
    assert first.shape == second.shape == (2,)


@on_gpu()
def test_a_custom_operator_with_a_fake_kernel_works_with_autograd():
    @torch.library.custom_op("mylib::scale", mutates_args=(), device_types="cuda")
    def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
        raise AssertionError("the real kernel needs a real card")

    scale.register_fake(lambda x, factor: torch.empty_like(x))
    scale.register_autograd(lambda ctx, grad: (grad * 2, None))
    x = torch.rand(4, 4, device=CARD, requires_grad=True)
    out = scale(x, 2.0)
    assert out.shape == (4, 4)
    assert out.device == CARD
    out.sum().backward()
    assert x.grad.shape == (4, 4)


@on_gpu()
def test_a_custom_operator_written_in_torch_runs():
    @torch.library.custom_op("mylib::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert twice(torch.ones(3, device=CARD)).tolist() == [2, 2, 2]


# ---- copies of models ----


@on_gpu()
def test_models_are_copied_pickled_and_loaded():
    model = small_model().cuda()
    twin = copy.deepcopy(model)
    assert twin[0].weight.data_ptr() != model[0].weight.data_ptr()
    assert torch.equal(twin[0].weight, model[0].weight)
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded[0].weight.is_cuda
    assert torch.equal(loaded[0].weight.cpu(), model[0].weight.cpu())
    fresh = small_model().cuda()
    assert str(fresh.load_state_dict(model.state_dict())) == "<All keys matched successfully>"
    assert torch.equal(fresh[3].bias.cpu(), model[3].bias.cpu())
    with pytest.raises(RuntimeError, match="size mismatch"):
        fresh.load_state_dict({**model.state_dict(), "0.weight": torch.ones(1, 1)})
    buffer = io.BytesIO()
    torch.save(torch.ones(3, device=CARD), buffer)
    buffer.seek(0)
    assert torch.load(buffer).tolist() == [1, 1, 1]
    assert fresh.cpu()[0].weight.device.type == "cpu"
    assert fresh.to("cuda", torch.bfloat16)[0].weight.dtype == torch.bfloat16


@on_gpu()
def test_weight_and_spectral_norm_parametrisations_work():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)).cuda()
    layer(torch.rand(2, 16, device=CARD)).sum().backward()
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64)).cuda()
    spectral(torch.rand(2, 64, device=CARD)).sum().backward()
    flat = nn.utils.parameters_to_vector(layer.parameters())
    nn.utils.vector_to_parameters(flat, layer.parameters())


@on_gpu()
def test_a_tensor_is_printed_with_its_device():
    assert repr(torch.tensor([1.0, 2.0], device=CARD)) == "tensor([1., 2.], device='cuda:0')"
    assert "device='cuda:0'" in repr(torch.rand(1 << 16, device=CARD))
    assert "device='cuda:0'" in repr(torch.rand(100, 100, device=CARD, requires_grad=True).sum())


@on_gpu()
def test_nested_tensors_and_grouped_matmul_have_shapes():
    a = torch.rand(32, 16, device=CARD, dtype=torch.bfloat16)
    b = torch.rand(4, 16, 8, device=CARD, dtype=torch.bfloat16)
    offsets = torch.tensor([8, 16, 24, 32], device=CARD, dtype=torch.int32)
    assert torch._grouped_mm(a, b, offs=offsets).shape == (32, 8)
    nested = torch.nested.nested_tensor([torch.rand(3, 4), torch.rand(5, 4)], layout=torch.jagged, device=CARD)
    assert nested.device == CARD
    assert torch.nested.to_padded_tensor(nested, 0.0).shape == (2, 5, 4)


def norm_and_activations() -> None:
    x, weight = (torch.randn(shape, device="cuda", requires_grad=True) for shape in ((8, 2048), (2048,)))
    F.mish(F.silu(F.rms_norm(x, (2048,), weight))).sum().backward()


def test_kernels_that_have_a_fallback_in_plain_operators_stay_one_operator():
    # torch has CUDA kernels for these, and a composite for backends that have none.
    seen = Counter(each.signature.op for each in rehearse(norm_and_activations).trace.rank(0).operators())
    for name in ("_fused_rms_norm", "_fused_rms_norm_backward", "silu_backward", "mish_backward"):
        assert seen[f"aten::{name}"] == 1, name
    assert not seen["aten::rsqrt"] + seen["aten::sigmoid"]


def _multiply_with_and_without_tf32() -> None:
    a = torch.ones(64, 64, device="cuda")
    _ = a @ a
    torch.set_float32_matmul_precision("high")
    _ = a @ a
    _ = a.bfloat16() @ a.bfloat16()


def test_products_of_float32_say_whether_the_script_allows_tf32():
    operators = rehearse(_multiply_with_and_without_tf32).trace.rank(0).operators()
    assert [op.signature.tf32 for op in operators if op.signature.op == "aten::mm"] == [False, True, False]


@on_gpu()
def test_flags_are_shifted_into_an_integer():
    signs = torch.tensor([True, False, True], device="cuda")
    mask = torch.tensor(0, dtype=torch.int32, device="cuda")
    for place, sign in enumerate(signs):
        mask |= sign << place
    assert mask.item() == 0b101
    assert ((torch.ones(4096, 4096, device="cuda") > 0) << 1).dtype == torch.int64
