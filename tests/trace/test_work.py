"""Work: what a kernel does, beside its tensors."""

import pytest
from tests.trace.building import spec

from sandtable.trace import Signature, Work, bytes_moved, flops

WORK = Work(family="gemm", products=((2, 8, 4, 16), (1, 1, 1, 1)), dtype="bfloat16", bytes_read=7, num_kernels=3)


def test_work_comes_back_from_the_text_of_its_signature():
    signature = Signature("package::kernel", (spec(2, 2),), (), work=WORK)
    assert Signature.parse(signature.text) == signature


def test_defaults_leave_no_text():
    assert Work().text == "{}"
    assert Signature.parse(Signature("package::kernel", work=Work()).text).work == Work()


def test_operations_are_those_of_the_products_unless_they_are_given():
    assert flops(Signature("package::kernel", work=WORK)) == 2 * (2 * 8 * 4 * 16 + 1)
    assert flops(Signature("package::kernel", work=Work(flops=5))) == 5


def test_bytes_are_those_of_the_tensors_unless_they_are_given():
    tensors = ((spec(2, 2),), (spec(4),))
    assert bytes_moved(Signature("package::kernel", *tensors, work=Work())) == (16, 16)
    assert bytes_moved(Signature("package::kernel", *tensors, work=WORK)) == (7, 16)


def test_a_negative_number_is_refused():
    with pytest.raises(ValueError, match="flops of a kernel must not be negative, but got -1"):
        Work(flops=-1)
