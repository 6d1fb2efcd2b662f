"""Signatures: read from the text the core writes, when somebody looks."""

import pytest
from tests.trace.building import ADD, MM, spec

from sandtable.errors import TraceError
from sandtable.trace import Signature, SignatureTable, TensorSpec
from sandtable.trace.work import Work

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


def test_operations_that_depend_on_values_do_not_tell_signatures_apart():
    def hashed(*, flops: int, depends: bool) -> int:
        work = Work(family="attention", flops=flops, depends_on_values=depends)
        return int(SignatureTable([Signature("flex_attention::forward", work=work)]).hashes[0])

    assert hashed(flops=1, depends=True) == hashed(flops=2, depends=True)
    assert hashed(flops=1, depends=False) != hashed(flops=2, depends=False)


def test_which_operators_were_fused_does_not_tell_kernels_of_the_same_work_apart():
    def hashed(name: str, read: int = 8) -> int:
        return int(SignatureTable([Signature(name, work=Work(bytes_read=read))]).hashes[0])

    assert hashed("inductor::triton_poi_fused_add_ge_where_0") == hashed("inductor::triton_poi_fused_add_ge")
    assert hashed("inductor::triton_poi_fused_add") != hashed("inductor::triton_red_fused_add")
    assert hashed("inductor::triton_poi_fused_add") != hashed("inductor::triton_poi_fused_add", read=16)
