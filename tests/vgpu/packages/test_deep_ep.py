"""DeepEP: tokens reach the ranks of their experts once each, and come back."""

import pytest
import torch
import torch.distributed as dist
from tests.vgpu.virtual import rehearse

TOKENS, WIDTH, EXPERTS, TOPK, RANKS = 512, 256, 16, 4, 4


def _exchange() -> None:
    from deep_ep import Buffer
    from deep_ep.utils import EventHandle, EventOverlap

    dist.init_process_group("nccl")
    buffer = Buffer(dist.group.WORLD, 1 << 20, 0)
    x = torch.empty(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
    scores = torch.rand(TOKENS, EXPERTS, device="cuda").softmax(-1)
    weights, experts = scores.topk(TOPK, dim=-1)
    per_rank, per_node, per_expert, goes, _ = buffer.get_dispatch_layout(experts, EXPERTS)
    assert per_node is None
    assert per_expert.sum().item() == TOKENS * TOPK
    received, local, received_weights, counts, handle, event = buffer.dispatch(
        x, num_tokens_per_rank=per_rank, is_token_in_rank=goes, num_tokens_per_expert=per_expert, topk_idx=experts,
        topk_weights=weights, previous_event=EventOverlap(EventHandle()), async_finish=True,
    )  # fmt: skip
    event.current_stream_wait()
    total = torch.tensor([len(received), sum(counts), per_rank.sum().item()], device="cuda")
    assert (local >= 0).sum().item() == sum(counts)
    assert received_weights.shape == local.shape == (len(received), TOPK)
    dist.all_reduce(total)
    assert total.tolist() == [total[2].item(), RANKS * TOKENS * TOPK, total[2].item()]
    combined, _, _ = buffer.combine(received, handle)
    assert combined.shape == x.shape
    assert len(buffer.dispatch(combined, handle=handle)[0]) == len(received)  # as in a backward pass


def test_what_is_sent_is_what_is_received():
    done = rehearse(_exchange, ranks=RANKS)
    tokens = [
        [call for call in done.trace.rank(rank).collectives() if call.op == "all_to_all" and call.dtype == "bfloat16"]
        for rank in range(RANKS)
    ]
    for there, back, again in tokens:
        assert (there.bytes_in, there.bytes_out) == (back.bytes_out, back.bytes_in) == (again.bytes_in, again.bytes_out)
    assert sum(calls[0].bytes_in for calls in tokens) == sum(calls[0].bytes_out for calls in tokens)
    assert (
        tokens[0][0].bytes_in <= TOKENS * RANKS * WIDTH * 2
    )  # a token goes once to a rank, however many experts it has
    assert done.notes("missing package")


@pytest.mark.parametrize("routing", ["balanced", "zipf:1.2"])
def test_counts_add_up_whatever_the_routing(routing: str):
    rehearse(_exchange, ranks=RANKS, routing=routing)
