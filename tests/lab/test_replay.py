"""Recorded operators are called again, on tensors of the recorded shapes."""

import json
from typing import Any

import pytest
import torch

from sandtable.lab.probes.replay import Unrunnable, make_calls, make_tensor
from sandtable.lab.probes.standard import sign, spec, standard_signatures

CPU = torch.device("cpu")
MATRIX, VECTOR, SCALAR = spec("float32", [8, 4]), spec("float32", [4]), spec("float32", [])
HEADS = ["float32", [2, 4, 8, 16], [512, 16, 64, 1], "cuda"]

CASES = {
    "scalar that was not kept": sign("aten::add", [MATRIX, VECTOR], [MATRIX], ["t", "t", "s"]),
    "in place": sign("aten::mul_", [MATRIX, MATRIX], [MATRIX], ["t", "t"]),
    "out of a number": sign("aten::clamp", [MATRIX], [MATRIX], ["t", None, 1]),
    "one list": sign("aten::cat", [VECTOR, VECTOR, VECTOR], [spec("float32", [12])], ["t", 0]),
    "two lists": sign("aten::_foreach_lerp_", [MATRIX, VECTOR] * 2, [MATRIX, VECTOR], ["t", "t", "s"]),
    "optional tensor that is absent": sign(
        "aten::nll_loss_backward",
        [SCALAR, MATRIX, spec("int64", [8]), SCALAR],
        [MATRIX],
        ["t", "t", "t", "t", 1, -100, "t"],
    ),
    "attention of another kernel": sign(
        "aten::_scaled_dot_product_efficient_attention", [HEADS] * 3, [HEADS], ["t", "t", "t", None, True, 0.0, True]
    ),
    "copy": sign("aten::copy_", [VECTOR], [MATRIX], ["t"]),
}


def result_of(text: str) -> Any:
    calls = make_calls(text, CPU)
    found = [call() for call in calls]
    return found[-1]


@pytest.mark.parametrize("name", CASES)
def test_replayed_operator_gives_the_recorded_shapes(name: str) -> None:
    found = result_of(CASES[name])
    expected = [tuple(row[1]) for row in json.loads(CASES[name])["out"]]
    if found is None:  # an operator on lists works in place and gives nothing back
        return
    tensors = [found] if isinstance(found, torch.Tensor) else list(found)
    assert [tuple(each.shape) for each in tensors[: len(expected)]] == expected


@pytest.mark.parametrize("text", standard_signatures()[:10])
def test_standard_operators_run(text: str) -> None:
    found = result_of(text)
    first = found if isinstance(found, torch.Tensor) else found[0]
    assert list(first.shape) == json.loads(text)["out"][0][1]


def test_backward_of_attention_gives_a_gradient_for_each_input() -> None:
    text = sign(
        "aten::_scaled_dot_product_efficient_attention_backward", [HEADS] * 5, [HEADS] * 3, ["t"] * 5 + [0.0, True]
    )
    assert [tuple(each.shape) for each in result_of(text)] == [(2, 4, 8, 16)] * 3


def test_tensors_have_the_recorded_strides_and_type() -> None:
    made = make_tensor(["bfloat16", [3, 5], [1, 3], "cuda"], CPU, 2)
    assert (made.dtype, tuple(made.shape), made.stride()) == (torch.bfloat16, (3, 5), (1, 3))


@pytest.mark.parametrize("op", ["aten::no_such_operator", "aten::mm"])
def test_what_cannot_be_run_is_said_to_be_so(op: str) -> None:
    with pytest.raises(Unrunnable):
        make_calls(sign(op, [VECTOR], [VECTOR], ["t"]), CPU)
