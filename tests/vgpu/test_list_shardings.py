"""DTensor considers each kind of element of a list once, and gives the same answer."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from sandtable.vgpu.list_shardings import _once_per_kind

PLACEMENTS = {Shard(0): (2, 8), Shard(1): (8, 2), Replicate(): (8, 8)}
"""Ways to cut a tensor of 8 x 8 over 4 ranks, and what a rank holds."""


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield init_device_mesh("cpu", (4,))
    torch.distributed.destroy_process_group()


def parameters(mesh: DeviceMesh, num_layers: int) -> list[DTensor]:
    return [
        DTensor.from_local(torch.zeros(shape), mesh, [placement], run_check=False)
        for _ in range(num_layers)
        for placement, shape in PLACEMENTS.items()
    ]


class Asked:
    """Counts the elements of the lists that DTensor considers."""

    def __init__(self, propagate: Any) -> None:
        self.num_elements: list[int] = []
        self._propagate = propagate

    def __call__(self, propagator: Any, op_schema: Any) -> Any:
        self.num_elements.append(len(op_schema.args_schema[0]))
        return self._propagate(propagator, op_schema)


def shardings(op: Any, *args: Any) -> tuple[Any, Any, list[int]]:
    """What DTensor says about a call, without the adaptation and with it, and how many elements it then considers."""
    dispatcher = DTensor._op_dispatcher
    propagator = dispatcher.sharding_propagator
    schema: Any = dispatcher.unwrap_to_op_info(op, args, {}).schema
    propagate = type(propagator).propagate_op_sharding_non_cached
    asked = Asked(propagate)
    return propagate(propagator, schema), _once_per_kind(asked)(propagator, schema), asked.num_elements


def specs(schema: Any) -> Any:
    return None if schema is None else (schema.args_schema, schema.kwargs_schema)


CALLS = {
    "norms": (torch.ops.aten._foreach_norm.Scalar, lambda tensors: (tensors, 2.0)),
    "in place": (torch.ops.aten._foreach_mul_.Scalar, lambda tensors: (tensors, 2.0)),
    "two lists": (torch.ops.aten._foreach_add.List, lambda tensors: (tensors, tensors)),
    "lists that must be cut alike": (torch.ops.aten._foreach_add.List, lambda tensors: (tensors, tensors[::-1])),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_answer_is_the_same_and_takes_one_element_of_each_kind(name: str, mesh: DeviceMesh) -> None:
    op, arguments = CALLS[name]
    expected, found, num_elements = shardings(op, *arguments(parameters(mesh, 5)))
    assert found.output_spec == expected.output_spec
    assert found.needs_redistribute == expected.needs_redistribute
    assert specs(found.redistribute_schema) == specs(expected.redistribute_schema)
    assert num_elements == [len(PLACEMENTS)]


def test_numbers_beside_the_tensors_are_part_of_their_kind(mesh: DeviceMesh) -> None:
    tensors = parameters(mesh, 4)
    scalars = [float(number // 6) for number in range(len(tensors))]
    expected, found, num_elements = shardings(torch.ops.aten._foreach_mul.ScalarList, tensors, scalars)
    assert found.output_spec == expected.output_spec
    assert num_elements == [2 * len(PLACEMENTS)]


def test_operators_that_join_a_list_see_all_of_it(mesh: DeviceMesh) -> None:
    _, _, num_elements = shardings(torch.ops.aten.cat.default, parameters(mesh, 2)[:1] * 4, 0)
    assert num_elements == [4]
