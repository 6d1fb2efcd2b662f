"""Flat buffers are read from the parameters of a process."""

import gc
from types import SimpleNamespace

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


def test_a_group_of_megatron_fsdp_is_a_buffer():
    weight, bias = (Parameter(torch.empty(0, dtype=torch.bfloat16)) for _ in range(2))
    items = [
        SimpleNamespace(global_data_index=0, size=30, item_id=0, shape=(6, 5)),
        SimpleNamespace(global_data_index=30, size=6, item_id=1, shape=(6,)),
    ]
    cut = SimpleNamespace(
        is_data_distributed=True, dp_world_size=8, bucket_index=SimpleNamespace(size=40, items=items[::-1])
    )
    group = SimpleNamespace(params=[weight, bias], main_weight_buffer=None, model_weight_buffer=cut)
    model = SimpleNamespace(param_and_grad_buffer=SimpleNamespace(parameter_groups=[group]))
    for parameter in weight, bias:
        vars(parameter).update(_megatron_fsdp_model=model)
    reader = FlatBufferReader()
    reader.read()
    (buffer,) = (buffer for buffer in reader.buffers if buffer.num_shards == 8)
    assert (buffer.num_elements, buffer.parts) == (40, ((0, 30, ()), (30, 6, ("vector",))))
