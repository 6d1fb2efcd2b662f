"""Flat buffers are read from the parameters of a process."""

import gc

import torch
from torch.nn import Parameter

from sandtable.vgpu.flat_buffers import FlatBufferReader


def read() -> list[tuple[int, int]]:
    """Return elements and shards of the buffers of ZeRO-3 in this process."""
    reader = FlatBufferReader()
    reader.read()
    return [(buffer.num_elements, buffer.num_shards) for buffer in reader.buffers if buffer.num_shards]


def sharded_parameter() -> Parameter:
    """Return a parameter as ZeRO-3 leaves it: 10 elements over 4 ranks."""
    parameter = Parameter(torch.empty(0))
    shard = torch.empty(3)
    vars(shard).update(ds_numel=3)
    vars(parameter).update(ds_tensor=shard, ds_numel=10, ds_shape=(10,), ds_zero_partition_world_size=4)
    return parameter


def test_a_parameter_of_zero_3_is_a_buffer_of_its_own():
    parameter = sharded_parameter()
    assert read() == [(12, 4)]
    del parameter


def test_a_model_that_was_built_before_the_collector_forgot_it_is_read():
    parameter = sharded_parameter()
    reader = FlatBufferReader()
    reader.note_parameters()
    try:
        gc.freeze()
        assert read() == []
        reader.read()
    finally:
        gc.unfreeze()
    assert [buffer.num_elements for buffer in reader.buffers if buffer.num_shards] == [12]
    del parameter
