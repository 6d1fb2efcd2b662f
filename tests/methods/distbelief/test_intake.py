"""Gradients of a shard: each portion counts once, and the copy that counts is the one the coordinator names."""

import pytest
import torch

from sandtable.methods.distbelief.intake import Intake
from sandtable.methods.server.message import MalformedError


def opened() -> Intake:
    intake = Intake()
    intake.open("first")
    return intake


def test_the_named_copy_counts_whichever_came_first():
    intake = opened()
    intake.put(3, "a", [torch.tensor([1.0])])
    intake.put(3, "b", [torch.tensor([2.0])])
    assert intake.take(3, "b")[0].item() == 2.0
    assert (intake.num_counted, intake.num_dropped) == (1, 1)


def test_a_copy_that_comes_after_its_portion_has_counted_is_dropped():
    intake = opened()
    intake.put(3, "a", [torch.tensor([1.0])])
    intake.take(3, "a")
    intake.put(3, "b", [torch.tensor([2.0])])
    assert intake.num_dropped == 1
    with pytest.raises(MalformedError, match="portion 3 of b must have been pushed"):
        intake.take(3, "b")


def test_a_gradient_is_copied_since_the_memory_it_came_in_is_used_again():
    intake, gradient = opened(), torch.tensor([1.0])
    intake.put(0, "a", [gradient])
    gradient.fill_(7.0)
    assert intake.take(0, "a")[0].item() == 1.0


def test_what_waits_is_dropped_when_the_next_evaluation_begins():
    intake = opened()
    intake.put(0, "a", [torch.tensor([1.0])])
    intake.open("second")
    assert intake.num_dropped == 1
    with pytest.raises(MalformedError):
        intake.take(0, "a")
