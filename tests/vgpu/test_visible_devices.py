"""A script may set CUDA_VISIBLE_DEVICES itself, before it first uses CUDA."""

import os

import torch
from tests.vgpu.virtual import rehearse


def see_own_card() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["RANK"]
    print(torch.cuda.device_count(), torch.zeros(1, device="cuda").device)
    try:
        torch.zeros(1, device="cuda:1")
    except RuntimeError as error:
        print("invalid device ordinal" in str(error))
    torch.ones(1 << 20, device="cuda")


def test_a_rank_that_sees_its_own_card_alone_uses_it_as_the_first() -> None:
    done = rehearse(see_own_card, ranks=2)
    assert sorted(text for _, text in done.out) == ["1 cuda:0", "1 cuda:0", "True", "True"]
    assert [done.trace.rank(rank).memory.allocated_bytes for rank in range(2)] == [4 << 20] * 2
