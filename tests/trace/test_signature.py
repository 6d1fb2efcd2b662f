"""Signatures: read from the text the core writes, when somebody looks."""

import pytest
from tests.trace.building import ADD, MM, spec

from sandtable.errors import TraceError
from sandtable.trace import Signature, SignatureTable, TensorSpec

TEXT = (
    '{"op":"aten::mm","in":[["bfloat16",[8,4],[4,1],"cuda"],null],'
    '"out":[["bfloat16",[8,2],[2,1],"cuda"]],"args":[1,true]}'
)


def test_the_text_of_the_core_is_read():
    signature = Signature.parse(TEXT)
    assert signature.op == "aten::mm"
    assert signature.inputs == (TensorSpec("bfloat16", (8, 4), (4, 1), "cuda"),)
    assert signature.outputs == (TensorSpec("bfloat16", (8, 2), (2, 1), "cuda"),)
    assert signature.arguments == [1, True]


def test_a_signature_comes_back_from_its_own_text():
    assert Signature.parse(ADD.text) == ADD


def test_text_that_is_no_signature_is_refused_with_the_text():
    with pytest.raises(TraceError, match=r"a signature must be JSON .* but got '\{\}'"):
        Signature.parse("{}")


def test_the_name_leaves_the_overload_out():
    assert ADD.name == "aten::add"


def test_a_table_parses_only_what_is_looked_at():
    table = SignatureTable([MM, "this is not JSON"])
    assert table[0] == MM
    assert table[0] is table[0]
    with pytest.raises(TraceError):
        table[1]


def test_expanded_dimensions_take_no_bytes():
    expanded = spec(32, 4, strides=(0, 1))
    assert expanded.size_bytes == 512
    assert expanded.distinct_bytes == 16
    assert spec(dtype="int64").size_bytes == 8
    assert spec(0, 4).distinct_bytes == 0


def test_an_unknown_dtype_is_named():
    with pytest.raises(TraceError, match="'float3'"):
        _ = spec(2, dtype="float3").size_bytes
