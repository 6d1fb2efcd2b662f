"""Data-dependent sizes: what routers choose adds up, both ends of an all-to-all agree, and imbalance shows."""

# mypy: disable-error-code="index,union-attr"

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from time import process_time

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.vgpu.capturing import capture
from tests.vgpu.virtual import on_gpu, rehearse
from torch.nn import functional as F

from sandtable.cluster import load
from sandtable.engine import simulate
from sandtable.errors import LaunchError
from sandtable.trace import Trace
from sandtable.vgpu import Routing

CARD = torch.device("cuda:0")
TOKENS, EXPERTS, TOP_K = 4096, 8, 2


def scores(tokens: int = TOKENS, experts: int = EXPERTS) -> torch.Tensor:
    return torch.rand(1 << 20, device=CARD)[: tokens * experts].view(tokens, experts)


def shares(weights: list[float], top_k: int) -> list[float]:
    """Each expert's share of the tokens: in proportion to its weight, but never more than all tokens."""
    full: set[int] = set()
    while True:
        rest = sum(weight for expert, weight in enumerate(weights) if expert not in full)
        found = [
            1.0 if expert in full else (top_k - len(full)) * weight / rest for expert, weight in enumerate(weights)
        ]
        more = {expert for expert, share in enumerate(found) if share > 1 + 1e-12}
        if not more:
            return found
        full |= more


def quotas(weights: list[float], *, tokens: int, top_k: int) -> list[int]:
    """Whole tokens: the boundaries between experts, on a line of all choices, are rounded."""
    bounds = [0]
    total = 0.0
    for share in shares(weights, top_k):
        total += share
        bounds.append(int(total * tokens + 0.5))
    return [high - low for low, high in pairwise(bounds)]


def zipf(exponent: float, experts: int = EXPERTS) -> list[float]:
    return [(expert + 1) ** -exponent for expert in range(experts)]


# ---- what a router chooses ----


@on_gpu()
def test_a_balanced_router_gives_every_expert_as_many_tokens():
    weights, experts = scores().softmax(-1).topk(TOP_K, dim=-1)
    assert weights.shape == experts.shape == (TOKENS, TOP_K)
    assert torch.bincount(experts.flatten(), minlength=EXPERTS).tolist() == [TOKENS * TOP_K // EXPERTS] * EXPERTS
    assert (experts[:, 0] != experts[:, 1]).all()
    for best in (scores().argmax(-1), scores().max(-1).indices, scores().sort(-1, descending=True).indices[:, 0]):
        assert torch.bincount(best, minlength=EXPERTS).tolist() == [TOKENS // EXPERTS] * EXPERTS
    early = torch.bincount(experts[: TOKENS // 8].flatten(), minlength=EXPERTS).tolist()
    assert max(early) - min(early) <= 4  # every part of the batch is balanced, too


@on_gpu(routing="zipf:1.2")
def test_popular_experts_get_more_tokens():
    experts = scores().topk(TOP_K, dim=-1).indices
    counts = torch.bincount(experts.flatten(), minlength=EXPERTS).tolist()
    assert counts == quotas(zipf(1.2), tokens=TOKENS, top_k=TOP_K)
    assert (experts[:, 0] != experts[:, 1]).all()
    assert sum(counts) == TOKENS * TOP_K


@on_gpu()
def test_choices_are_different_and_add_up_whatever_the_sizes():
    @settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(tokens=st.integers(1, 300), experts=st.integers(1, 40), data=st.data())
    def check(tokens: int, experts: int, data: st.DataObject) -> None:
        top_k = data.draw(st.integers(1, experts))
        chosen = scores(tokens, experts).topk(top_k, dim=-1).indices
        counts = torch.zeros(experts, dtype=torch.long, device=CARD)
        counts.scatter_add_(0, chosen.flatten(), torch.ones_like(chosen.flatten()))
        host = chosen.cpu()
        assert all(len(set(row)) == top_k for row in host.tolist())
        assert int(counts.sum()) == tokens * top_k
        assert counts.max() - counts.min() <= 1 or top_k == experts
        assert 0 <= int(host.min()) <= int(host.max()) < experts

    check()


@on_gpu()
def test_everything_computed_from_a_choice_is_consistent():
    experts = scores().topk(TOP_K, dim=-1).indices
    total = TOKENS * TOP_K
    one_hot = F.one_hot(experts, EXPERTS)
    assert int(one_hot.sum()) == total
    assert one_hot.sum((0, 1)).tolist() == [total // EXPERTS] * EXPERTS
    counts = torch.histc(experts.flatten(), bins=EXPERTS, min=0, max=EXPERTS)
    assert counts.tolist() == torch.bincount(experts.flatten(), minlength=EXPERTS).tolist()
    offsets = counts.cumsum(0).to(torch.int32)
    assert offsets[-1].item() == total
    order = experts.flatten().argsort(stable=True)
    assert sorted(order.tolist()) == list(range(total))
    assert experts.flatten()[order].diff().min() >= 0
    mask = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool, device=CARD).scatter_(1, experts, True)
    assert mask.sum().item() == total
    tokens = torch.rand(TOKENS, 64, device=CARD)
    assert tokens[order // TOP_K].shape == (total, 64)
    for expert in range(EXPERTS):
        rows, ranks = torch.where(experts == expert)
        assert len(rows) == len(ranks) == total // EXPERTS
        assert tokens[mask[:, expert]].shape == (total // EXPERTS, 64)
    chosen = torch.arange(1 << 16, device=CARD)[:TOKENS].unsqueeze(0).expand(EXPERTS, -1).masked_select(mask.t())
    assert chosen.shape == (total,)
    assert torch.arange(EXPERTS, device=CARD).repeat_interleave(counts.long()).shape == (total,)
    assert torch.unique(experts).tolist() == list(range(EXPERTS))
    assert [len(part) for part in tokens.repeat(TOP_K, 1).split(counts.long().tolist())] == [total // EXPERTS] * EXPERTS


def _choose_in_groups(tokens: int, experts: int, groups: int, kept: int, top_k: int) -> torch.Tensor:
    """Choose as DeepSeek's routers do: among the experts of the best groups."""
    sigmoids = scores(tokens, experts).sigmoid()
    of_groups = sigmoids.view(tokens, groups, -1).topk(min(2, experts // groups), dim=-1)[0].sum(-1)
    best = of_groups.topk(kept, dim=-1)[1]
    mask = torch.zeros_like(of_groups).scatter_(1, best, 1)
    mask = mask.unsqueeze(-1).expand(tokens, groups, experts // groups).reshape(tokens, experts)
    chosen = sigmoids.masked_fill(~mask.bool(), float("-inf")).topk(top_k, dim=-1)[1]
    assert mask.gather(1, chosen).min().item() == 1  # in the groups that were kept
    assert torch.where(mask.bool(), sigmoids, float("-inf")).topk(top_k)[1].tolist() == chosen.tolist()
    return chosen


@on_gpu()
def test_groups_of_experts_restrict_the_choice():
    for tokens, experts, groups, kept, top_k in ((4096, 64, 8, 4, 6), (1000, 256, 8, 4, 8), (7, 12, 3, 1, 4)):
        chosen = _choose_in_groups(tokens, experts, groups, kept, top_k)
        assert all(len(set(row)) == top_k for row in chosen.tolist())
        counts = torch.bincount(chosen.flatten(), minlength=experts).tolist()
        assert sum(counts) == tokens * top_k
        if tokens > experts:
            assert max(counts) - min(counts) <= 0.1 * tokens * top_k / experts + 2


@on_gpu(routing="zipf:1.2")
def test_groups_of_experts_keep_the_popular_ones_popular():
    counts = torch.bincount(_choose_in_groups(4096, 64, 8, 4, 6).flatten(), minlength=64).tolist()
    assert sum(counts) == 4096 * 6
    assert counts[0] == max(counts)
    assert counts[0] > 4 * counts[40]


@on_gpu()
def test_a_choice_that_a_mask_restricts_is_made_once_for_each_mask():
    rows, experts, top_k = 512, 256, 8
    begins_at = torch.arange(rows, device=CARD).unsqueeze(1) * 32 % experts
    masks = [(torch.arange(experts, device=CARD) - begins_at) % experts < kept for kept in (64, 128)]

    def choose(mask: torch.Tensor) -> tuple[torch.Tensor, float]:
        masked = scores(rows, experts).masked_fill(~mask, float("-inf"))
        start = process_time()
        chosen = masked.topk(top_k)[1]
        return chosen, process_time() - start

    (one, took), (other, _) = choose(masks[0]), choose(masks[1])
    again, seconds = zip(*(choose(masks[0]) for _ in range(3)), strict=True)
    assert all(chosen.tolist() == one.tolist() for chosen in again)
    assert other.tolist() != one.tolist()
    assert min(seconds) < took / 3


@on_gpu()
def test_tokens_of_each_expert_are_counted_in_a_mask():
    chosen = scores(experts=256).topk(4)[1]
    mask = torch.zeros(TOKENS, 256, dtype=torch.bool, device=CARD).scatter_(1, chosen, True)
    expected = torch.bincount(chosen.flatten(), minlength=256)
    for counts in (mask.sum(dim=0), mask.sum(0, dtype=torch.int64), mask.sum(dim=0, keepdim=True)[0], mask.T.sum(-1)):
        assert counts.dtype == torch.int64
        assert counts.tolist() == expected.tolist()
    assert mask.sum(dim=1).unique().tolist() == [4]


@on_gpu()
def test_a_second_expert_is_another_one():
    """Take the best score, rule it out, and take the best again."""
    logits = scores()
    first = logits.argmax(dim=1)
    rest = logits.masked_fill(F.one_hot(first, EXPERTS).bool(), float("-inf"))
    second = rest.argmax(dim=1)
    assert not (first == second).any().item()
    assert torch.bincount(second, minlength=EXPERTS).tolist() == [TOKENS // EXPERTS] * EXPERTS
    third = rest.masked_fill(F.one_hot(second, EXPERTS).bool(), float("-inf")).softmax(dim=1).argmax(dim=1)
    assert not ((third == first) | (third == second)).any().item()
    rest.copy_(logits)  # nothing is ruled out any more
    assert rest.argmax(dim=1).tolist() == first.tolist()


@on_gpu()
def test_the_gate_of_deepspeed_takes_two_experts():
    pytest.importorskip("deepspeed")
    from deepspeed.moe.sharded_moe import top2gating

    _, weights, mask, counts = top2gating(scores(), 2.0, 4)
    assert weights.shape == mask.shape == (TOKENS, EXPERTS, 2 * 2 * TOKENS // EXPERTS)
    assert counts.tolist() == [2 * TOKENS // EXPERTS] * EXPERTS


@on_gpu()
def test_packed_sequences_have_real_lengths():
    lengths = torch.tensor([100, 28, 128], device=CARD)
    bounds = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    assert bounds.tolist() == [0, 100, 128, 256]
    assert int(lengths.max()) == 128
    document = torch.repeat_interleave(torch.arange(3, device=CARD), lengths)
    assert document.shape == (256,)
    assert (document[1:] != document[:-1]).nonzero().flatten().tolist() == [99, 127]
    packed = torch.rand(256, 4, 64, device=CARD)
    assert [part.shape[0] for part in packed.split(lengths.tolist())] == [100, 28, 128]


class Router(torch.nn.Module):
    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.bincount(scores.argmax(-1), minlength=EXPERTS)


def choose_and_read() -> None:
    counts = Router()(scores())
    counts.tolist()
    counts.cpu()


def sample_and_count() -> None:
    with torch.no_grad():
        token = torch.multinomial(scores().softmax(-1), num_samples=1)
    token.tolist()
    predicted = scores().argmax(-1)
    (predicted == torch.zeros_like(predicted)).sum().item()


def test_the_run_notes_once_that_sizes_depend_on_the_routing():
    (note,) = rehearse(choose_and_read, routing="zipf:2").notes("routing")
    assert "zipf:2 routing was assumed" in note.text


def test_tokens_that_are_sampled_and_predictions_that_are_counted_are_no_routing():
    assert not rehearse(sample_and_count).notes("routing")


# ---- between ranks ----


@on_gpu(ranks=4, routing="zipf:1")
def test_both_ends_of_an_all_to_all_agree():
    dist.init_process_group("nccl")
    experts = scores().topk(TOP_K, dim=-1).indices
    counts = torch.bincount(experts.flatten(), minlength=EXPERTS)
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts)
    mine = slice(dist.get_rank() * 2, dist.get_rank() * 2 + 2)
    assert received.view(4, 2).tolist() == [counts[mine].tolist()] * 4
    everyone = torch.empty(4 * EXPERTS, dtype=torch.long, device=CARD)
    dist.all_gather_into_tensor(everyone, counts)
    assert int(everyone.sum()) == 4 * TOKENS * TOP_K
    dist.all_reduce(counts)
    assert int(counts.sum()) == 4 * TOKENS * TOP_K
    masks = torch.empty(4 * TOKENS, EXPERTS, dtype=torch.bool, device=CARD)
    dist.all_gather_into_tensor(masks, F.one_hot(experts, EXPERTS).sum(1).bool())
    assert int(masks.sum()) == 4 * TOKENS * TOP_K


HIDDEN, SEQ_LEN, LAYERS = 64, 32, 4
"""Of the size "tiny" of the examples."""


def exchanged(trace: Trace, rank: int) -> Counter[tuple[int, int]]:
    """Bytes in and out of each all-to-all of tokens in the second step."""
    view = trace.rank(rank)
    start, end = view.step_slices()[1].start, view.step_slices()[1].stop
    calls = [call for call in view.collectives() if call.op == "all_to_all" and call.dtype == "float32"]
    return Counter((call.bytes_in, call.bytes_out) for call in calls if start <= call.index < end)


@pytest.mark.parametrize("routing", ["balanced", "zipf:1.2"])
def test_a_mixture_of_experts_exchanges_the_bytes_of_the_formula(routing: str) -> None:
    """Each layer sends T k rows of h numbers, and gets what all ranks have for its experts: there and back, twice."""
    ranks, experts, top_k, batch = 4, 8, 2, 16
    trace = capture("moe.py", "--micro-batch", batch, world_size=ranks, ranks="all", routing=routing)
    weights = [1.0] * experts if routing == "balanced" else zipf(1.2, experts)
    tokens_of = quotas(weights, tokens=batch * SEQ_LEN, top_k=top_k)
    row = HIDDEN * 4
    for rank in range(ranks):
        sent = batch * SEQ_LEN * top_k * row
        received = ranks * sum(tokens_of[rank * 2 : rank * 2 + 2]) * row
        assert exchanged(trace, rank) == Counter({(sent, received): 2 * LAYERS}) + Counter(
            {(received, sent): 2 * LAYERS}
        )


@pytest.mark.parametrize("routing", ["balanced", "zipf:1.2"])
@pytest.mark.parametrize(("ranks", "ep"), [(8, 8), (16, 4)])
def test_few_ranks_tell_what_all_would(routing: str, ranks: int, ep: int) -> None:
    flags = ("--ep", ep, "--micro-batch", 4)
    every = capture("moe.py", *flags, world_size=ranks, ranks="all", routing=routing)
    few = capture("moe.py", *flags, world_size=ranks, ranks="auto", routing=routing)
    for rank in range(ranks):
        assert few.rank(rank).digest() == every.rank(rank).digest()
        assert exchanged(few, rank) == exchanged(every, rank)
    assert len(few.classes) == len(every.classes) == (1 if routing == "balanced" else ep)


def test_imbalance_shows_in_time_and_memory() -> None:
    cluster = load("dgx-a100", nodes=1)
    traces = {
        routing: capture("moe.py", "--size", "124m", "--micro-batch", 4, world_size=8, routing=routing)
        for routing in ("balanced", "zipf:1.2")
    }
    step = {routing: simulate(trace, cluster).step_ns for routing, trace in traces.items()}
    peaks = {
        routing: [trace.rank(rank).memory.allocated_bytes for rank in range(8)] for routing, trace in traces.items()
    }
    assert step["zipf:1.2"] > 1.2 * step["balanced"]
    assert len(set(peaks["balanced"])) == 1
    assert peaks["zipf:1.2"][0] > peaks["balanced"][0] > peaks["zipf:1.2"][7]


# ---- --routing ----


def test_a_file_lists_weights_per_expert_or_per_layer(tmp_path: Path) -> None:
    one, many, table = tmp_path / "one.json", tmp_path / "many.json", tmp_path / "table.csv"
    one.write_text(json.dumps([3, 1]))
    many.write_text(json.dumps([[3, 1], [1, 1]]))
    table.write_text("3,1\n1,1\n")
    assert Routing.parse(str(one)).weights == ((3, 1),)
    assert Routing.parse(str(many)).weights == Routing.parse(str(table)).weights == ((3, 1), (1, 1))
    assert not Routing.parse(str(one)).differs_by_layer
    assert Routing.parse("zipf:1.5").zipf == 1.5
    assert Routing.parse("balanced") == Routing()


@pytest.mark.parametrize("text", ["even", "zipf:", "zipf:-1", "zipf:x", "nowhere.json"])
def test_an_unknown_routing_is_refused(text: str) -> None:
    with pytest.raises(LaunchError, match=r"zipf:1\.2"):
        Routing.parse(text)


@pytest.mark.parametrize("content", ["[]", '{"a": 1}', "[-1, 2]", "[0, 0]", "[[1], [null]]", "no"])
def test_a_bad_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "weights.json"
    path.write_text(content)
    with pytest.raises(LaunchError, match="weight"):
        Routing.parse(str(path))


def test_layers_route_by_their_own_weights_also_when_they_are_recomputed(tmp_path: Path) -> None:
    path = tmp_path / "weights.csv"
    rows = [[3.0, 1, 1, 1, 1, 1, 1, 1], [1.0] * 8, [1.0, 1, 1, 1, 1, 1, 1, 3], [1.0] * 8]
    path.write_text("\n".join(",".join(map(str, row)) for row in rows))
    flags = ("--micro-batch", 16, "--recompute", "full")
    trace = capture("moe.py", *flags, world_size=2, ranks="all", routing=str(path))
    counts = [quotas(row, tokens=16 * SEQ_LEN, top_k=2) for row in rows]
    received = Counter(2 * sum(row[:4]) * HIDDEN * 4 for row in counts)
    found = Counter(size for sizes, number in exchanged(trace, 0).items() for size in sizes for _ in range(number))
    sent = 16 * SEQ_LEN * 2 * HIDDEN * 4
    # forward, recomputed forward and backward: two exchanges each, of which one side is what was sent
    assert found == Counter({size: 6 * number for size, number in received.items()}) + Counter({sent: 6 * LAYERS})


@on_gpu()
def test_zeros_to_which_unknown_numbers_are_added_take_no_memory_of_the_host():
    import resource

    rows, width = 1 << 14, 7168  # 224 MiB
    numbers = torch.randn(rows, width, device=CARD, dtype=torch.bfloat16)
    places = torch.arange(rows, device=CARD).unsqueeze(1).expand(-1, width)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    torch.zeros(rows, width, device=CARD, dtype=torch.bfloat16).scatter_add(0, places, numbers)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
