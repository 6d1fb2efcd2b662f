"""Kernels whose record says what they do."""

import pytest
from tests.engine.compute.operators import spec

from sandtable.cluster import load_device
from sandtable.engine.compute import CostModel
from sandtable.trace import Signature, Work

MODEL = CostModel(load_device("a100-sxm4-80gb"))
LARGE = 8192


def _cost_ns(work: Work) -> float:
    return MODEL.cost(
        Signature("package::kernel", (spec("bfloat16", LARGE, LARGE),), (spec("bfloat16", LARGE, LARGE),), work=work)
    ).work_ns


def test_a_listed_product_takes_as_long_as_torchs():
    square = spec("bfloat16", LARGE, LARGE)
    torchs = MODEL.cost(Signature("aten::mm", (square, square), (square,))).work_ns
    described = _cost_ns(Work(family="gemm", products=((1, LARGE, LARGE, LARGE),)))
    assert described == pytest.approx(torchs, rel=1e-3)


def test_bytes_decide_where_there_are_no_products():
    assert _cost_ns(Work(bytes_read=2 * LARGE**2 * 10)) == pytest.approx(11 / 2 * _cost_ns(Work()), rel=0.05)


def test_the_family_and_the_basis_are_those_of_the_description():
    cost = MODEL.cost(Signature("package::kernel", work=Work(family="normalisation", basis="fitted")))
    assert (cost.family, cost.basis) == ("normalisation", "fitted")
