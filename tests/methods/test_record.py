"""What every run measures: steps, times, bytes, disagreement; and what is left out."""

import json
import time
from typing import Any

import pytest
import torch.distributed as dist
from tests.methods.processes import run
from tests.methods.training import make_model, sgd, step_through

from sandtable.methods.data import BulkSynchronous, DataParallel, Gossip, LocalSGD

_VECTOR_BYTES = 4 * 275


class _Writer:
    def __init__(self) -> None:
        self.written: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.written.append((name, value, step))


class _Run:
    def __init__(self) -> None:
        self.written: list[tuple[dict[str, float], int]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.written.append((values, step))


def _measure() -> dict[str, Any]:
    model = make_model()
    parallel = DataParallel(model, sgd(model), sync=LocalSGD(2), exchange=Gossip())
    writer, wandb = _Writer(), _Run()
    parallel.record.log_to(writer)
    step_through(model, parallel, 3)
    apart = parallel.record.end_epoch(accuracy=0.5)
    with parallel.record.paused():
        time.sleep(0.2)
        parallel.synchronize()
    equal = parallel.record.end_epoch(loss=2.0)
    parallel.record.log_to(wandb)
    return {
        "apart": apart,
        "equal": equal,
        "total": parallel.record.total,
        "text": json.dumps(parallel.record.to_dict()),
        "writer": writer.written,
        "wandb": wandb.written,
        "slow": _wait_for_the_slow_one(),
    }


def _wait_for_the_slow_one() -> tuple[float, float]:
    model = make_model()
    parallel = DataParallel(model, sgd(model), sync=BulkSynchronous())
    step_through(model, parallel, 1)
    parallel.record.end_epoch()
    if dist.get_rank() == 1:
        time.sleep(0.5)
    step_through(model, parallel, 1)
    measured = parallel.record.end_epoch(disagreement=False)
    assert measured.disagreement is None
    return measured.communication_s, measured.synchronisation_s


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run(2, _measure)


def test_bytes_and_messages_are_those_of_the_exchanges(ranks):
    for found in ranks:
        # Three steps with period 2: one exchange, with the one other rank.
        assert found["apart"].messages == 1
        assert found["apart"].sent_bytes == found["apart"].received_bytes == _VECTOR_BYTES
        assert found["apart"].steps == found["total"].steps == 3


def test_disagreement_is_that_of_the_replicas(ranks):
    assert ranks[0]["apart"].disagreement > 0
    assert ranks[0]["apart"].disagreement == pytest.approx(ranks[1]["apart"].disagreement)
    assert ranks[0]["equal"].disagreement == 0


def test_what_is_done_in_a_pause_is_not_counted(ranks):
    for found in ranks:
        assert found["equal"].sent_bytes == found["equal"].messages == 0
        assert found["equal"].synchronisation_s == 0
        assert found["equal"].seconds < 0.2


def test_waiting_for_a_slow_rank_is_synchronisation_and_not_communication(ranks):
    communication_s, synchronisation_s = ranks[0]["slow"]
    assert synchronisation_s - communication_s > 0.3
    assert ranks[1]["slow"][0] == pytest.approx(communication_s)


def test_the_record_can_be_written_down(ranks):
    assert json.loads(ranks[0]["text"])["epochs"][0]["accuracy"] == 0.5
    assert ("accuracy", 0.5, 1) in ranks[0]["writer"]
    assert ranks[0]["wandb"][1][0]["loss"] == 2.0
    assert ranks[0]["total"].loss == 2.0
