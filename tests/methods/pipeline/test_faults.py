"""All ranks soon name a rank that dies or hangs."""

import os
import re
import signal
import time

import pytest
import torch.distributed as dist
from tests.methods.pipeline.losing import run_and_lose
from tests.methods.pipeline.training import batches, make_stages, sgd
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.pipeline import Flush, PipeDream, Pipeline

_TIMEOUT_S = 6.0


def train_until(victim, kind, schedule, replicas, path, timeout_s):
    pipeline = Pipeline(
        make_stages(len(replicas)),
        sgd,
        loss=F.cross_entropy,
        schedule=schedule,
        replicas=replicas,
        timeout_s=timeout_s,
    )
    try:
        for number, (inputs, targets) in enumerate(batches(40)):
            if number == 5 and dist.get_rank() == victim:
                path.write_text(str(time.time()))
                os.kill(os.getpid(), kind)
            pipeline.step(inputs, targets)
        pipeline.drain()
    except MethodError as error:
        return str(error), time.time() - float(path.read_text())
    return "no error", 0.0


@pytest.mark.parametrize(
    ("schedule", "replicas", "victim", "name"),
    [
        (PipeDream(), (1, 1, 1), 1, r"rank 1 \(stage 1\)"),
        (PipeDream(), (2, 1), 1, r"rank 1 \(stage 0, replica 1\)"),
        (Flush(4), (1, 1, 1), 2, r"rank 2 \(stage 2\)"),
    ],
    ids=str,
)
def test_a_rank_that_is_killed_is_named_by_all_others(schedule, replicas, victim, name, tmp_path):
    path = tmp_path / "killed"
    answers = run_and_lose(3, victim, train_until, victim, signal.SIGKILL, schedule, replicas, path, 50.0)
    for message, seconds in answers.values():
        assert_matches(message, f"{name} is gone, while rank")
        # At once; the limit is for a busy machine. It must not be the timeout that helped.
        assert seconds < 20


@pytest.mark.parametrize("schedule", [PipeDream(), Flush(4)], ids=str)
def test_a_rank_that_hangs_is_an_error_within_the_timeout(schedule, tmp_path):
    path = tmp_path / "stopped"
    answers = run_and_lose(2, 1, train_until, 1, signal.SIGSTOP, schedule, (1, 1), path, _TIMEOUT_S)
    message, seconds = answers[0]
    assert_matches(message, r"timeout_s \(6 s\), but rank 1 \(stage 1\) was silent")
    assert _TIMEOUT_S - 1 < seconds < _TIMEOUT_S + 15


def assert_matches(message, pattern):
    assert re.search(pattern, message), message
