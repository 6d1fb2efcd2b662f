"""Facts about unknown values: what is derived holds for every value that the given facts allow.

Tensors here are too large to have a value on the virtual GPU. The same operators run on real tensors of the host, drawn
at random such that they satisfy the facts of the virtual ones, and must stay within what is derived.
"""

# mypy: disable-error-code="index,union-attr"

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.vgpu.virtual import on_gpu

from sandtable.vgpu.preload import loaded_core

CARD = torch.device("cuda:0")
SHAPE = (3, 98_304)
"""Above every limit up to which values are kept."""

Operator = Callable[[torch.Tensor], torch.Tensor]

UNARY: dict[str, Operator] = {
    "abs": torch.abs,
    "neg": torch.neg,
    "relu": torch.relu,
    "square": torch.square,
    "cube": lambda x: x**3,
    "half": lambda x: x / 2,
    "floor half": lambda x: torch.div(x, 2, rounding_mode="floor"),
    "trunc third": lambda x: torch.div(x, -3, rounding_mode="trunc"),
    "plus": lambda x: x + 3,
    "minus": lambda x: 5 - x,
    "minus twice": lambda x: torch.sub(x, x.abs(), alpha=2),
    "times": lambda x: x * -2,
    "by itself": lambda x: x * x,
    "by its magnitude": lambda x: x * x.abs(),
    "clamp": lambda x: x.clamp(-2, 7),
    "clamp above": lambda x: x.clamp(min=1),
    "remainder": lambda x: x.remainder(4),
    "bool": lambda x: x.bool(),
    "float": lambda x: x.float(),
    "half precision": lambda x: x.to(torch.bfloat16),
    "int": lambda x: x.int(),
    "long": lambda x: x.long(),
    "byte of small": lambda x: x.clamp(0, 200).to(torch.uint8),
    "sigmoid": lambda x: x.float().sigmoid(),
    "softmax": lambda x: x.float().softmax(-1),
    "tanh": lambda x: x.float().tanh(),
    "exp of small": lambda x: x.float().clamp(-5, 5).exp(),
    "root": lambda x: x.float().abs().sqrt(),
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(-1),
    "sum of columns": lambda x: x.sum(0),
    "mean": lambda x: x.float().mean(),
    "largest": lambda x: x.amax(-1),
    "smallest": lambda x: x.min(),
    "best": lambda x: x.max(dim=-1).values,
    "where best": lambda x: x.argmax(-1),
    "order": lambda x: x.sort(dim=0).indices,
    "count": lambda x: torch.count_nonzero(x, dim=0),
    "cumsum": lambda x: x.cumsum(0),
    "norm": lambda x: x.float().norm(),
    "any": lambda x: x.any(),
    "all": lambda x: x.all(),
    "not": torch.logical_not,
    "zero": lambda x: x == 0,
    "other than itself": lambda x: x != x,
    "itself": lambda x: x == x,
    "less": lambda x: x < 3,
    "at most": lambda x: x <= -3,
    "more": lambda x: x > -1,
    "at least": lambda x: x >= 100,
    "infinite": torch.isinf,
    "finite": torch.isfinite,
    "not a number": torch.isnan,
    "masked": lambda x: x.masked_fill(x > 2, 1),
    "masked by infinity": lambda x: x.float().masked_fill(x > 2, float("-inf")),
    "chosen": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "padded": lambda x: torch.nn.functional.pad(x, (1, 1), value=9),
    "row": lambda x: x[0] if x.dim() else x,
    "turned": lambda x: x.t().contiguous() if x.dim() == 2 else x,
    "flat": lambda x: x.reshape(-1).clone(),
    "twice": lambda x: torch.cat([x.reshape(-1), x.reshape(-1) + 1]),
    "picked": lambda x: x.reshape(-1)[torch.zeros(7, dtype=torch.long, device=x.device)],
    "in place": lambda x: x.clone().add_(1),
    "filled": lambda x: x.clone().fill_(4),
    "part written": lambda x: x.clone().reshape(-1).index_fill_(0, torch.tensor([0], device=x.device), 11),
    "and": lambda x: x.bool() & (x > 1),
    "or": lambda x: x.isnan() | x.isinf(),
    "greater of two": lambda x: torch.maximum(x, -x),
    "lesser of two": lambda x: torch.minimum(x, x.abs()),
    "lower triangle": lambda x: x.tril() if x.dim() == 2 else x,
}
_FOR_TRUTHS = {
    "any",
    "all",
    "not",
    "and",
    "or",
    "sum",
    "sum of rows",
    "count",
    "cumsum",
    "float",
    "long",
    "int",
    "bool",
    "flat",
}
"""Operators that bools may go into as they are."""


def holds(virtual: torch.Tensor, real: torch.Tensor) -> bool:
    low, high, may_be_nan, total = loaded_core().facts(virtual)
    numbers = real.double()
    has_nan = bool(numbers.isnan().any())
    numbers = numbers[~numbers.isnan()]
    is_within = numbers.numel() == 0 or (low <= numbers.min().item() and numbers.max().item() <= high)
    adds_up = total is None or total == real.double().sum().item()
    return is_within and adds_up and (may_be_nan or not has_nan)


def read_is_allowed(virtual: torch.Tensor) -> bool:
    low, high, may_be_nan, _ = loaded_core().facts(virtual)
    value = float(virtual.reshape(-1)[0].item())
    return low <= value <= high or (may_be_nan and math.isnan(value))


def real_like(virtual: torch.Tensor, seed: int) -> torch.Tensor:
    """Return a real tensor that satisfies the facts of a virtual one, moderate where these say no more than finite."""
    low, high, _, _ = loaded_core().facts(virtual)
    random = torch.Generator().manual_seed(seed)
    low, high = max(low, -20.0), min(high, 20.0)
    if virtual.dtype == torch.bool:
        return (torch.rand(virtual.shape, generator=random) < seed % 3 / 2).clamp(int(low), int(high)).bool()
    if virtual.dtype.is_floating_point:
        numbers = torch.rand(virtual.shape, generator=random) * (high - low) + low
        return torch.clamp(numbers.to(virtual.dtype), low, high)
    return torch.randint(int(low), int(high) + 1, virtual.shape, generator=random, dtype=virtual.dtype)


def sources() -> dict[str, torch.Tensor]:
    numbers = torch.empty(SHAPE, device=CARD).normal_()
    return {
        "numbers": numbers,
        "shares": torch.empty(SHAPE, device=CARD).uniform_(-0.5, 2),
        "zeros": torch.zeros(SHAPE, device=CARD),
        "ones": torch.ones(SHAPE, device=CARD, dtype=torch.long),
        "digits": numbers.long().clamp(0, 9),
        "small": numbers.int().clamp(-4, 4),
        "flags": numbers > 0,
        "none": numbers.isnan(),
    }


@on_gpu()
def test_what_is_derived_holds_for_every_value_that_the_facts_allow():
    given_sources = sources()

    @settings(max_examples=400, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(
        source=st.sampled_from(sorted(given_sources)),
        names=st.lists(st.sampled_from(sorted(UNARY)), min_size=1, max_size=3),
        seed=st.integers(0, 1000),
    )
    def check(source: str, names: list[str], seed: int) -> None:
        virtual = given_sources[source]
        real = real_like(virtual, seed)
        for name in names:
            if virtual.dtype in (torch.bool, torch.uint8) and name not in _FOR_TRUTHS:
                virtual, real = virtual.long(), real.long()
            virtual, real = UNARY[name](virtual), UNARY[name](real)
            assert virtual.shape == real.shape
            assert virtual.dtype == real.dtype
            if not bool(torch.isfinite(real.double()).all()) and name != "masked by infinity":
                return  # no healthy run
            assert holds(virtual, real), (source, names, name, loaded_core().facts(virtual), real)
            assert read_is_allowed(virtual)

    check()


@on_gpu()
def test_a_healthy_run_is_presumed():
    loss = torch.rand(1 << 16, device=CARD).log().mean()
    assert math.isfinite(loss.item())
    assert not math.isnan(loss.item())
    assert not loss.isnan()
    assert not loss.isinf()
    assert torch.isfinite(loss)
    assert not loss > 1e6
    assert not torch.isnan(torch.rand(1 << 16, device=CARD)).nonzero().numel()
    gradients = [torch.rand(1 << 16, device=CARD).requires_grad_() for _ in range(3)]
    for gradient in gradients:
        gradient.grad = torch.rand(1 << 16, device=CARD)
    norm = torch.nn.utils.clip_grad_norm_(gradients, 1.0, error_if_nonfinite=True)
    assert norm.item() > 0


@on_gpu()
def test_infinities_that_a_script_writes_are_not_presumed_away():
    scores = torch.rand(64, 1024, device=CARD)
    masked = scores.masked_fill(scores > 0.5, float("-inf"))
    low, high, may_be_nan, _ = loaded_core().facts(masked.isinf())
    assert (low, high, may_be_nan) == (0, 1, False)
    assert torch.isfinite(masked.softmax(-1)).all()


@on_gpu()
def test_counts_add_up():
    ids = torch.randint(0, 64, (1 << 20,), device=CARD)
    counts = torch.bincount(ids, minlength=64)
    assert counts.sum().item() == 1 << 20
    assert sum(counts.tolist()) == 1 << 20
    assert min(counts.tolist()) >= 0
    assert counts.view(8, 8).sum(1).sum().item() == 1 << 20
    per_rank = torch.zeros(1 << 14, dtype=torch.long, device=CARD)
    per_rank.scatter_add_(0, ids, torch.ones_like(ids))
    assert int(per_rank.sum()) == 1 << 20
    assert int(per_rank.cpu().sum()) == 1 << 20


@on_gpu()
def test_a_part_that_is_written_weakens_what_is_known_of_the_whole():
    flags = torch.zeros(1 << 17, device=CARD, dtype=torch.bool)
    assert not flags.any()
    flags[:8] = torch.rand(8, 1 << 12, device=CARD).sum(1) > 4
    low, high, _, _ = loaded_core().facts(flags)
    assert (low, high) == (0, 1)
    flags.fill_(True)
    assert flags.all()
    assert flags[3]


@on_gpu(ranks=4)
def test_ranks_agree_on_facts():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    unknown = torch.rand(1 << 16, device=CARD)
    is_bad = unknown.isinf().any()
    for flag in (is_bad.byte(), is_bad.float(), is_bad.int()):
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        assert flag.item() == 0
        dist.all_reduce(flag)
        assert flag.item() == 0
    fine = unknown.isfinite().all().int()
    dist.all_reduce(fine, op=dist.ReduceOp.MIN)
    assert fine.item() == 1
    dist.all_reduce(fine)
    assert fine.item() == 4
    loss = unknown.mean()
    dist.all_reduce(loss)
    assert (loss / 4).item() == 1
    # one knows, the others do not
    mixed = torch.tensor([7], device=CARD) if rank == 0 else torch.randint(2, 5, (1 << 18,), device=CARD).max().view(1)
    dist.all_reduce(mixed, op=dist.ReduceOp.MAX)
    assert mixed.item() == 7
    gathered = torch.empty(4, dtype=torch.uint8, device=CARD)
    dist.all_gather_into_tensor(gathered, is_bad.byte().view(1))
    assert gathered.tolist() == [0, 0, 0, 0]
    sent = torch.randint(3, 5, (512,), device=CARD) if rank == 0 else torch.zeros(512, dtype=torch.long, device=CARD)
    dist.broadcast(sent, 0)
    assert all(3 <= value < 5 for value in sent.tolist())
    # too large to be kept, small enough to be described
    counts = torch.randint(1, 3, (1 << 18,), device=CARD)
    low, high, _, _ = loaded_core().facts(counts)
    assert (low, high) == (1, 2)
    dist.all_reduce(counts)
    low, high, _, _ = loaded_core().facts(counts)
    assert (low, high) == (4, 8)
    out = torch.empty(1 << 16, dtype=torch.long, device=CARD)
    dist.reduce_scatter_tensor(out, torch.randint(1, 3, (1 << 18,), device=CARD))
    low, high, _, _ = loaded_core().facts(out)
    assert (low, high) == (4, 8)


@on_gpu(ranks=2)
def test_no_framework_finds_an_overflow():
    dist.init_process_group("nccl")
    gradients = [torch.rand(1 << 16, device=CARD, dtype=torch.float16) for _ in range(3)]

    def agreed(flag: torch.Tensor) -> float:
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return float(flag.item())

    # DeepSpeed, in three places
    is_bad = gradients[0].isnan().logical_or(gradients[0].isinf())
    assert agreed(is_bad.float().max()) == 0
    total = sum((gradient.float().sum() for gradient in gradients), torch.zeros((), device=CARD))
    assert float(total) not in (float("inf"), -float("inf"))
    assert agreed((total.isnan() | total.isinf()).byte()) == 0
    assert agreed(torch.tensor([bool(is_bad.any())], device=CARD, dtype=torch.uint8)) == 0
    # Megatron: the scaler's flag, and the check of the norm
    found_inf = torch.zeros(1, device=CARD)
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, torch.full((1,), 0.5, device=CARD))
    assert agreed(found_inf) == 0
    norm = torch.stack([gradient.float().norm() for gradient in gradients]).norm().pow(2)
    dist.all_reduce(norm)
    assert 0 <= norm.sqrt().item() < float("inf")
    assert not norm.isnan()
    # Lightning, and what people write
    assert torch.isfinite(norm).all()
    assert not torch.isnan(torch.stack([gradient.sum() for gradient in gradients])).any()
    assert not norm > 1e6
