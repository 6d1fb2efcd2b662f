"""Bytes that operators move, against arithmetic."""

import pytest
from tests.trace.building import ADD, MM, spec

from sandtable.trace import Signature, bytes_moved


def test_every_tensor_is_read_and_written_once():
    assert bytes_moved(MM) == (4 * (8 * 4 + 4 * 16), 4 * 8 * 16)
    assert bytes_moved(ADD) == (2 * 512, 512)


def test_an_expanded_input_is_read_once():
    expanded = spec(8, 16, strides=(0, 1))
    assert bytes_moved(Signature("aten::mul.Tensor", (spec(8, 16), expanded), (spec(8, 16),))) == (512 + 64, 512)


@pytest.mark.parametrize("op", ["aten::view", "aten::t", "aten::slice.Tensor", "aten::empty.memory_format"])
def test_views_and_bare_allocations_move_nothing(op: str):
    assert bytes_moved(Signature(op, (spec(8, 16),), (spec(8, 16),))) == (0, 0)


def test_fills_only_write():
    assert bytes_moved(Signature("aten::zeros_like", (spec(8),), (spec(8),))) == (0, 32)
    assert bytes_moved(Signature("aten::zero_", (spec(8),), (spec(8),))) == (0, 32)
    assert bytes_moved(Signature("aten::_foreach_zero_", (spec(8), spec(4)))) == (0, 48)


def test_a_copy_does_not_read_what_it_overwrites():
    half, full = spec(8, dtype="bfloat16"), spec(8)
    assert bytes_moved(Signature("aten::copy_", (full, half), (full,))) == (16, 32)
    assert bytes_moved(Signature("aten::copy_", (half,), (full,))) == (16, 32)


def test_tensors_of_the_host_do_not_count():
    device, host = spec(8), spec(8, device="cpu")
    assert bytes_moved(Signature("aten::copy_", (device, host), (device,))) == (0, 32)
    assert bytes_moved(Signature("copy::host_to_device", (host,), (device,))) == (0, 32)
    assert bytes_moved(Signature("copy::device_to_host", (device,), (host,))) == (32, 0)


def test_an_embedding_reads_the_rows_it_picks():
    tokens = spec(2, 3, dtype="int64")
    signature = Signature("aten::embedding", (spec(50_000, 16), tokens), (spec(2, 3, 16),))
    assert bytes_moved(signature) == (48 + 384, 384)


def test_a_scatter_touches_as_much_as_it_adds():
    signature = Signature("aten::index_add_", (spec(1000, 4), spec(3, dtype="int64"), spec(3, 4)), (spec(1000, 4),))
    assert bytes_moved(signature) == (24 + 48 + 48, 48)


def test_an_out_variant_does_not_read_its_output():
    inputs = (spec(3, 5), spec(5, 7), spec(3, 7))
    assert bytes_moved(Signature("aten::mm.out", inputs, inputs[2:])) == (4 * (15 + 35), 4 * 21)


def test_splitting_into_given_tensors_writes_them():
    inputs = (spec(24), spec(8), spec(16))
    signature = Signature("aten::split_with_sizes_copy", inputs, args='["t",[8,16],0,"t"]')
    assert bytes_moved(signature) == (96, 96)


def test_joining_chunks_into_a_given_tensor_does_not_read_it():
    inputs = (spec(8), spec(16), spec(24))
    assert bytes_moved(Signature("aten::_chunk_cat", inputs, inputs[2:], '["t",0,2,"t"]')) == (96, 96)
    assert bytes_moved(Signature("aten::_chunk_cat", inputs[:2], inputs[2:], '["t",0,2]')) == (96, 96)


def test_places_of_tensors_tell_one_list_from_two():
    one = spec(8)
    assert bytes_moved(Signature("aten::_foreach_add_", (one, one), args='["t",1]')) == (64, 64)
    assert bytes_moved(Signature("aten::_foreach_add_", (one, one), args='["t","t",1]')) == (64, 32)
    assert bytes_moved(Signature("aten::_foreach_mul_", (one, one, spec()), args='["t","t"]')) == (68, 64)
    assert bytes_moved(Signature("aten::_foreach_lerp_", (one,) * 3, args='["t","t","t"]')) == (96, 32)


def test_lists_in_place_write_their_first_list():
    one, two = spec(8), spec(16)
    assert bytes_moved(Signature("aten::_foreach_add_.List", (one, two, one, two), args="[1]")) == (192, 96)
    assert bytes_moved(Signature("aten::_foreach_add_", (one, two, one, two), args="[1]")) == (192, 96)
    assert bytes_moved(Signature("aten::_foreach_mul_.Scalar", (one, one), args="[0.9]")) == (64, 64)
    assert bytes_moved(Signature("aten::_foreach_addcdiv_.Scalar", (one,) * 3, args="[1]")) == (96, 32)
    assert bytes_moved(Signature("aten::_foreach_lerp_.Scalar", (one,) * 2, args="[0.1]")) == (64, 32)
    assert bytes_moved(Signature("aten::_foreach_copy_", (one, two, one, two))) == (96, 96)
    assert bytes_moved(Signature("aten::_foreach_sqrt_", (one, two))) == (96, 96)


@pytest.mark.parametrize(("amsgrad", "num_lists", "num_written"), [("false", 4, 3), ("true", 5, 4)])
def test_fused_adamw_writes_parameters_and_moments(amsgrad: str, num_lists: int, num_written: int):
    parameters, steps = (spec(100), spec(10, 10), spec(50)), (spec(),) * 3
    inputs = (*parameters * num_lists, *steps)
    signature = Signature("aten::_fused_adamw_", inputs, args=f"[0.1,0.9,0.99,0.0,1e-8,{amsgrad},false]")
    assert bytes_moved(signature) == (num_lists * 1000 + 12, num_written * 1000)
    with_scale = Signature("aten::_fused_adamw_", (*inputs, spec(), spec()), args=signature.args)
    assert bytes_moved(with_scale) == (num_lists * 1000 + 20, num_written * 1000)


def test_fused_sgd_writes_buffers_where_it_has_momentum():
    parameters = (spec(100), spec(50))
    tail = "0.1,0.0,false,false,false"
    tensors = '"t","t","t"'
    assert bytes_moved(Signature("aten::_fused_sgd_", parameters * 3, args=f"[{tensors},0,0.9,{tail}]")) == (1800, 1200)
    assert bytes_moved(Signature("aten::_fused_sgd_", parameters * 2, args=f"[0.0,0.0,{tail}]")) == (1200, 600)
    assert bytes_moved(Signature("aten::_fused_sgd_", parameters * 3, args=f"[0.0,0.9,{tail}]")) == (1800, 1200)


def test_unscaling_gradients_writes_them_back():
    name, scalar = "aten::_amp_foreach_non_finite_check_and_unscale_", spec()
    assert bytes_moved(Signature(name, (spec(100), spec(50), scalar, scalar))) == (608, 600)
    assert bytes_moved(Signature(name, (spec(100), spec(50), scalar), (scalar,))) == (604, 604)
