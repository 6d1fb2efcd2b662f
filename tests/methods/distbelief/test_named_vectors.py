"""Operations on the named vectors of a shard."""

import pytest
import torch

from sandtable.methods.server import LocalSpace, NamedVectors
from sandtable.methods.server.distbelief.operations import Operation, Verb, add, copy, dot, multiply, scale, zero
from sandtable.methods.server.message import MalformedError


def shard(*numbers: float) -> NamedVectors:
    """Make vectors of two dtypes, as a model may have."""
    return NamedVectors([torch.tensor(numbers), torch.tensor(numbers, dtype=torch.float64)])


def test_operations_change_their_target_only():
    vectors = shard(1.0, 2.0)
    for operation in (copy("a", "weights"), scale("a", 3.0), copy("b", "weights"), add("b", "a", -2.0)):
        assert vectors.apply(operation) is None
    vectors.apply(multiply("a", "weights"))
    vectors.apply(zero("c"))
    found = {name: tensors[1].tolist() for name, tensors in vectors.state_dict().items()}
    assert found == {"weights": [1.0, 2.0], "a": [3.0, 12.0], "b": [-5.0, -10.0], "c": [0.0, 0.0]}
    assert all(torch.equal(narrow.double(), wide) for narrow, wide in vectors.state_dict().values())


def test_dot_products_add_up_over_dtypes_and_shards():
    space = LocalSpace([shard(1.0, 2.0), shard(3.0)])
    assert space.run([copy("a", "weights"), scale("a", 2.0), dot("a", "weights"), dot("a", "a")]) == [56.0, 112.0]


def test_a_dot_product_of_float32_is_added_up_in_float64():
    vectors = NamedVectors([torch.tensor([1e4, 1.0, 1e4])])
    vectors.apply(copy("signs", "weights"))
    vectors["signs"][0].copy_(torch.tensor([1e4, 1.0, -1e4]))
    assert vectors.apply(dot("weights", "signs")) == 1.0


def test_a_vector_that_nobody_made_is_refused():
    with pytest.raises(MalformedError, match=r"one of \['weights'\], but got 'direction'"):
        shard(1.0).apply(scale("direction", 2.0))


@pytest.mark.parametrize("operation", [dot("a", "b"), add("a", "b", 1 / 3), zero("a")])
def test_operations_survive_the_wire(operation):
    assert Operation.from_wire(operation.to_wire()) == operation


@pytest.mark.parametrize(
    "value",
    [None, [], ["dot", "a", "b"], ["drop", "a", "b", 1.0], ["scale", "a", "", float("nan")], ["dot", 1, "b", 1]],
)
def test_what_is_no_operation_is_refused(value):
    with pytest.raises(MalformedError, match="an operation must"):
        Operation.from_wire(value)


def test_every_verb_is_carried_out():
    vectors = shard(1.0)
    vectors.apply(copy("a", "weights"))
    for verb in Verb:
        vectors.apply(Operation(verb, "a", "weights"))
