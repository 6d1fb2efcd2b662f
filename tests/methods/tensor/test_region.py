"""Entering split work: layers that read the same tensor share one exchange, and only they do."""

import torch
from tests.methods.processes import run

from sandtable.methods.tensor.dropout import Randomness
from sandtable.methods.tensor.group import TensorGroup
from sandtable.methods.tensor.region import Region


def _count_entries() -> list[int]:
    """Return the number of all-gathers after each call."""
    group = TensorGroup()
    region = Region(group, Randomness(group), sequence_dim=1)
    tensor, counts = torch.ones(2, 3), []

    def enter() -> None:
        entered = region.enter(tensor)
        assert torch.equal(entered, torch.cat([tensor] * group.size, dim=1))
        counts.append(group.traffic.calls["all-gather"])

    enter()
    enter()
    tensor.add_(1)
    enter()
    with torch.no_grad():
        enter()
    enter()
    region.end()
    enter()
    return counts


def test_a_tensor_enters_once_until_it_changes_or_the_region_ends():
    assert run(2, _count_entries)[0] == [1, 1, 2, 3, 4, 5]
