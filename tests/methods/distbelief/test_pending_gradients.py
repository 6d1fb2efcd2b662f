"""Gradients of a shard: each portion counts once, and the copy that counts is the one the coordinator names."""

import pytest
import torch

from sandtable.methods.server.distbelief.pending_gradients import PendingGradients
from sandtable.methods.server.message import MalformedError


def opened() -> PendingGradients:
    pending = PendingGradients()
    pending.open("first")
    return pending


def test_the_named_copy_counts_whichever_came_first():
    pending = opened()
    pending.put(3, "a", [torch.tensor([1.0])])
    pending.put(3, "b", [torch.tensor([2.0])])
    assert pending.take(3, "b")[0].item() == 2.0
    assert (pending.num_counted, pending.num_dropped) == (1, 1)


def test_a_copy_that_comes_after_its_portion_has_counted_is_dropped():
    pending = opened()
    pending.put(3, "a", [torch.tensor([1.0])])
    pending.take(3, "a")
    pending.put(3, "b", [torch.tensor([2.0])])
    assert pending.num_dropped == 1
    with pytest.raises(MalformedError, match="portion 3 of b must have been pushed"):
        pending.take(3, "b")


def test_a_gradient_is_copied_since_the_memory_it_came_in_is_used_again():
    pending, gradient = opened(), torch.tensor([1.0])
    pending.put(0, "a", [gradient])
    gradient.fill_(7.0)
    assert pending.take(0, "a")[0].item() == 1.0


def test_what_waits_is_dropped_when_the_next_evaluation_begins():
    pending = opened()
    pending.put(0, "a", [torch.tensor([1.0])])
    pending.open("second")
    assert pending.num_dropped == 1
    with pytest.raises(MalformedError):
        pending.take(0, "a")
