"""Training resumed from a checkpoint equals training that never stopped."""

import re

import pytest
import torch
from tests.methods.pipeline.training import adam, batches, make_stages, momentum, weights_of
from tests.methods.processes import run
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.data import ReplicaCheckpoints
from sandtable.methods.pipeline import Flush, PipeDream, PipeDream2BW, Pipeline


def make(schedule, replicas=(1, 1), optimizer=momentum):
    return Pipeline(make_stages(2), optimizer, loss=F.cross_entropy, schedule=schedule, replicas=replicas, timeout_s=40)


def interrupted(schedule, replicas, optimizer, directory, drains):
    """Return the weights after nine minibatches, and after five, a checkpoint, and four in a new pipeline."""
    whole = make(schedule, replicas, optimizer)
    for number, (inputs, targets) in enumerate(batches(9)):
        if drains and number == 5:
            whole.drain()
        whole.step(inputs, targets)
    whole.close()
    first = make(schedule, replicas, optimizer)
    for inputs, targets in batches(5):
        first.step(inputs, targets)
    ReplicaCheckpoints(directory, pipeline=first).save(5)
    first.close()
    second = make(schedule, replicas, optimizer)
    assert ReplicaCheckpoints(directory, pipeline=second).load() == 5
    for inputs, targets in batches(4, first=5):
        second.step(inputs, targets)
    second.close()
    return weights_of(whole.modules), weights_of(second.modules), [each.minibatch for each in second.record.passes]


@pytest.mark.parametrize(
    ("schedule", "replicas", "optimizer", "drains"),
    [
        (Flush(4), (1, 1), adam, False),
        (PipeDream(), (2, 1), momentum, True),
        (PipeDream2BW(2), (1, 1), adam, True),
    ],
    ids=["flush", "pipedream", "two versions"],
)
def test_resumed_training_is_the_same_to_the_bit(schedule, replicas, optimizer, drains, tmp_path):
    for whole, resumed, numbers in run(sum(replicas), interrupted, schedule, replicas, optimizer, tmp_path, drains):
        assert whole.keys() == resumed.keys()
        for name, weight in whole.items():
            assert torch.equal(weight, resumed[name]), name
        assert min(numbers) >= 5


def loads_another():
    state = make(Flush(4)).state_dict()
    with pytest.raises(MethodError) as refusal:
        make(PipeDream()).load_state_dict(state)
    return str(refusal.value)


def test_a_state_of_another_schedule_is_refused():
    for message in run(2, loads_another):
        assert re.search(r"PipeDream.*but it is of Flush", message), message
