"""Lookups read the rows that they pick, not the tables."""

from tests.engine.compute.operators import op, spec

from sandtable.cluster import load_device
from sandtable.engine.compute import CostModel

MODEL = CostModel(load_device("a100-sxm4-80gb"))
TABLES = [spec("float32", 3_200_000_000), spec("float32", 0), spec("float32", 0, 0)]
PLACES = [spec("int32", 5), spec("int64", 5), spec("int32", 6), spec("int64", 6)]
INDICES = [spec("int64", 10_000), spec("int64", 81_921)]
ROWS_BYTES = 10_000 * 128 * 4
LISTS_BYTES = 8 * (10_000 + 81_921)


def test_a_lookup_of_fbgemm_reads_one_row_per_index():
    result = spec("float32", 16_384, 640)
    name = "fbgemm::split_embedding_codegen_forward_unweighted_pt2_wrapper"
    cost = MODEL.cost(op(name, [*TABLES, *PLACES, *INDICES], [result]))
    assert cost.bytes == ROWS_BYTES + LISTS_BYTES + result.size_bytes
    assert cost.basis == "nominal"


def test_an_update_of_fbgemm_reads_and_writes_rows_and_states():
    name = "fbgemm::split_embedding_backward_codegen_adagrad_unweighted_pt2_wrapper"
    inputs = [spec("float32", 16_384, 640), *TABLES, *PLACES, *INDICES, spec("float32", 3_200_000_000)]
    cost = MODEL.cost(op(name, inputs, []))
    assert cost.bytes == ROWS_BYTES * (1 + 2 + 2) + LISTS_BYTES


def test_a_bag_of_torch_reads_one_row_per_index():
    inputs = [spec("float32", 1_000_000, 64), spec("int64", 20_480), spec("int64", 2_048)]
    cost = MODEL.cost(op("_embedding_bag", inputs, [spec("float32", 2_048, 64)]))
    assert cost.bytes == 20_480 * 64 * 4 + 8 * (20_480 + 2_048) + 2_048 * 64 * 4
