"""The work of a step, and its share of the peak that its number type has."""

import pytest
from tests.engine import building
from tests.engine.building import Script, make_trace

from sandtable.cluster import Topology, load
from sandtable.report.work import count_work, measure_efficiency
from sandtable.trace import Group, Signature, TensorSpec, Trace

IMAGES = TensorSpec("float32", (8, 16, 32, 32), (16384, 1024, 32, 1))
WEIGHTS = TensorSpec("float32", (16, 16, 3, 3), (144, 9, 3, 1))
CONVOLUTION = Signature(
    "aten::convolution", (IMAGES, WEIGHTS), (IMAGES,), '["t","t",null,[1,1],[1,1],[1,1],false,[0,0],1]'
)

MATRIX = TensorSpec("float8_e4m3fn", (64, 64), (64, 1))
SCALE = TensorSpec("float32", (), ())


def test_the_number_type_of_a_product_is_that_of_its_operands(monkeypatch):
    scaled = Signature("aten::_scaled_mm", (MATRIX, MATRIX, SCALE, SCALE), (MATRIX,), '["t","t","t","t"]')
    monkeypatch.setattr(building, "SIGNATURES", (scaled,))
    assert count_work(_one_step()).dtype == "float8_e4m3fn"


@pytest.mark.parametrize(
    ("machine", "dtype", "peak"), [("dgx-a100", "tf32", 156e12), ("dgx1-v100", "float32", 15.7e12)]
)
def test_convolutions_of_float32_are_held_against_tf32_where_the_device_has_it(monkeypatch, machine, dtype, peak):
    monkeypatch.setattr(building, "SIGNATURES", (CONVOLUTION,))
    work = count_work(_one_step())
    assert work.model_flops == 2 * 8 * 16 * 32 * 32 * 16 * 9
    found = measure_efficiency(work, Topology(load(machine), num_ranks=1), step_seconds=1.0)
    assert found.dtype == dtype
    assert found.peak_flops_per_s == pytest.approx(peak, rel=0.01)


def _one_step() -> Trace:
    script = Script()
    script.op()
    script.step()
    return make_trace({0: script}, classes={0: [0]}, groups=(Group("world", (0,)),))
