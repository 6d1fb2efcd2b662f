"""The helper of these tests: real ranks, joined, with errors that reach the test."""

import pytest
import torch
import torch.distributed as dist
from tests.methods.processes import RankError, run


def _sum_of_ranks(start: int) -> torch.Tensor:
    value = torch.tensor([float(start + dist.get_rank())])
    dist.all_reduce(value)
    return value


def _fail_on_rank_one() -> None:
    if dist.get_rank() == 1:
        raise ValueError("as asked")
    dist.barrier()


def test_ranks_are_joined_and_answer_in_order():
    assert [float(value) for value in run(3, _sum_of_ranks, 10)] == [33.0, 33.0, 33.0]


def test_an_error_of_a_rank_is_raised_with_its_traceback():
    with pytest.raises(RankError, match="as asked"):
        run(2, _fail_on_rank_one)
