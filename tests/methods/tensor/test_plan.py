"""Plans: which names a pattern matches, and which plans are refused."""

import pytest
from torch import nn

from sandtable.errors import MethodError
from sandtable.methods.tensor import DECODER, ENCODER, GPT2, ColumnSplit, RowSplit, TensorPlan, find_plan
from sandtable.methods.tensor.plan import matches


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("mlp.up", "blocks.0.mlp.up", True),
        ("mlp.up", "mlp.up", True),
        ("mlp.up", "blocks.0.other.up", False),
        ("mlp.up", "blocks.0.mlp.up.inner", False),
        ("mlp.up", "up", False),
        ("up", "blocks.0.group_up", False),
        ("h.*", "transformer.h.3", True),
        ("h.*", "transformer.h.3.attn.c_attn", False),
        ("blocks.*.up", "blocks.3.up", True),
        ("gate*", "blocks.3.gate_up", True),
        (".0", "0", True),
        (".0", "3.0", False),
        (".features.*", "features.2", True),
    ],
)
def test_a_pattern_is_compared_with_the_end_of_a_name(pattern, name, is_match):
    assert matches(pattern, name) is is_match


def test_styles_are_chosen_in_the_order_of_the_model():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    chosen = TensorPlan({"0.1": "row", "0.0": ColumnSplit(parts=2)}).choose(model)
    assert list(chosen.items()) == [("0.0", ColumnSplit(parts=2)), ("0.1", RowSplit())]


def test_two_styles_for_a_module_are_refused_and_the_same_twice_is_not():
    model = nn.Sequential(nn.Linear(2, 2))
    assert TensorPlan({"0": "row", "*": RowSplit()}).choose(model) == {"0": RowSplit()}
    with pytest.raises(MethodError, match=r"one style, but 0 matches \['0', '\*'\]; write a longer pattern"):
        TensorPlan({"0": "row", "*": "column"}).choose(model)


def test_a_pattern_that_matches_nothing_is_refused():
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(MethodError, match=r"must match a module, but \['1'\] match none"):
        TensorPlan({"0": "row", "1": "row"}).choose(model)
    with pytest.raises(MethodError, match=r"must match a module, but \['2'\] match none"):
        TensorPlan({"0": "row"}, sequence=("0", "2")).modules_of_sequence(model)
    assert TensorPlan({"0": "row", "1": "row"}, is_strict=False).choose(model) == {"0": RowSplit()}


def test_an_unknown_style_is_refused():
    with pytest.raises(MethodError, match=r'"heads", "channels" or a SplitStyle such as .* has \'rows\''):
        TensorPlan({"0": "rows"})


def test_a_plan_can_leave_patterns_out():
    assert "wte" not in GPT2.without("wte", "lm_head").styles
    assert GPT2.without("wte").sequence == GPT2.sequence
    with pytest.raises(MethodError, match="must be in the plan, but 'embedding' is not"):
        GPT2.without("embedding")


def test_the_plan_of_a_known_model_is_found():
    layer = nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)
    assert find_plan(nn.TransformerEncoder(layer, 1)) is ENCODER
    assert find_plan(nn.Transformer(4, 2, 1, 1, 4)) is DECODER
