"""Does it pay? Formulas before training, with a warning when it does not."""

from typing import Any

import pytest
import torch
from tests.methods.lossy import LargestHalf
from tests.methods.processes import run
from tests.methods.training import sgd
from torch import nn

from sandtable.errors import MethodError
from sandtable.methods.data import AllReduce, DataParallel, Explanation, Gossip, LocalSGD

_ELEMENTS = 1000 * 100


def _explain(bandwidth: float | None, latency: float | None, **settings: Any) -> Explanation:
    model = nn.Linear(1000, 100, bias=False)
    return DataParallel(model, sgd(model), **settings).explain(bandwidth=bandwidth, latency=latency)


def _explain_all() -> dict[str, Explanation]:
    torch.manual_seed(0)
    return {
        "dense": _explain(12.5e6, 1e-4),
        "seldom": _explain(12.5e6, 1e-4, sync=LocalSGD(10), exchange=Gossip()),
        "fast link": _explain(1e12, 0.0, compression=LargestHalf()),
        "no link": _explain(None, None, exchange=AllReduce(), compression=LargestHalf()),
    }


@pytest.fixture(scope="module")
def found() -> dict[str, Explanation]:
    explained: dict[str, Explanation] = run(4, _explain_all)[0]
    return explained


def test_dense_all_reduce_sends_the_ring_formula(found):
    dense = found["dense"]
    assert dense.sent_bytes == pytest.approx(2 * 3 / 4 * 4 * _ELEMENTS, rel=1e-3)
    assert dense.messages == 6
    assert dense.communication_s == pytest.approx(2 * 3 / 4 * 4 * _ELEMENTS / 12.5e6 + 6e-4, rel=1e-3)
    assert dense.warning is None


def test_seldom_and_with_few_is_cheap(found):
    # Distances 1 and 2 of four ranks: two partners, then one; every tenth step.
    assert found["seldom"].messages == pytest.approx(1.5 / 10)
    assert found["seldom"].sent_bytes == pytest.approx(1.5 * 4 * _ELEMENTS / 10)
    assert found["seldom"].communication_s < found["seldom"].dense_communication_s / 9


def test_compression_that_does_not_pay_is_warned_about(found):
    assert "costs more than it saves" in found["fast link"].warning
    assert found["fast link"].coding_s > 0
    # Half the components at 8 bytes each to three others: three times 400 kB, dense all-reduce 600 kB.
    assert "more bytes than dense" in found["no link"].warning
    assert found["no link"].communication_s is None


def test_it_prints_as_a_person_would_say_it(found):
    assert "a step sends 58.59 KiB in 0.15 messages, where dense all-reduce sends 585.94 KiB" in str(found["seldom"])
    assert "warning: " in str(found["fast link"])


def _refusals() -> list[str]:
    told = []
    for bandwidth, latency in ((float("nan"), None), (0.0, None), (1e6, -1.0), (None, 0.001)):
        with pytest.raises(MethodError) as error:
            _explain(bandwidth, latency)
        told.append(str(error.value))
    return told


def test_links_that_cannot_be_are_refused():
    nothing, zero, negative, alone = run(1, _refusals)[0]
    assert "bandwidth must be above 0 bytes/s, but got nan" in nothing
    assert "bandwidth must be above 0 bytes/s, but got 0" in zero
    assert "latency must be 0 s or more and come with a bandwidth, but got latency=-1" in negative
    assert "bandwidth=None; try explain(12.5e6, 0.0005)" in alone
