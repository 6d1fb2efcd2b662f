"""Shards of all ranks in one buffer."""

import pytest
from tests.engine.compute.operators import spec

from sandtable.cluster import load_device
from sandtable.engine.compute import CostModel
from sandtable.trace import Phase, Signature

MODEL = CostModel(load_device("a100-sxm4-80gb"))


def interleaved(num_shards: int) -> Signature:
    tensors = tuple(spec("bfloat16", 1 << 20) for _ in range(4))
    return Signature("deepspeed::interleave_shards", tensors, (spec("bfloat16", 4 << 20),), args=f'["t", {num_shards}]')


def joined(num_shards: int) -> Signature:
    size = (1 << 20) // num_shards
    return Signature(
        "deepspeed::join_shards", (spec("bfloat16", num_shards, size),), (spec("bfloat16", 1 << 20),), args='["t", 1]'
    )


@pytest.mark.parametrize(("signature_of", "microseconds_per_shard"), [(interleaved, 4), (joined, 3)])
def test_the_host_handles_one_shard_after_the_other(signature_of, microseconds_per_shard):
    few, many = (MODEL.host_ns(signature_of(num_shards), Phase.BACKWARD) for num_shards in (8, 1024))
    assert many - few == (1024 - 8) * microseconds_per_shard * 1000


def test_a_kernel_takes_128_shards():
    few, many = (MODEL.cost(interleaved(num_shards)).work_ns for num_shards in (8, 1024))
    assert many - few == pytest.approx((1024 * 4 // 128 - 1) * 2000)


def test_the_device_moves_each_shard_once():
    assert MODEL.cost(joined(64)).bytes == 2 * 2 * (1 << 20)
