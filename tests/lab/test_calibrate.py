"""Real calibration of this machine."""

import json

import pytest
from tests.lab.lab_state import needs_lab

from sandtable.errors import LabError
from sandtable.lab import LabPlan, calibrate
from sandtable.lab.calibration import _message_shares
from sandtable.lab.probes.standard import mm, sign, spec


def test_share_of_a_cable_comes_from_the_difference_of_two_messages() -> None:
    # 10 MB/s, and 3 ms that every message costs.
    pings = [[1, 100_000, 0.013], [1, 1_000_000, 0.103], [2, 100_000, 0.023], [2, 1_000_000, 0.203]]
    assert _message_shares(pings, [10e6, 20e6, 5e6]) == pytest.approx([1.0, 1.0])
    assert _message_shares(pings, [20e6, 20e6, 10e6]) == pytest.approx([0.5, 0.5])


@pytest.mark.slow
def test_this_machine_larger_products_take_longer_and_unknown_operators_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One thread: two that wait for each other on a busy machine spend milliseconds spinning, whatever the size.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    vector = spec("float32", [4])
    wanted = [mm(64, "float32"), mm(512, "float32"), sign("aten::no_such_operator", [vector], [vector], ["t"])]
    found = calibrate(wanted)
    small, large = (row.ns for row in found.operators)
    assert 0 < small < large / 20
    assert found.skipped == {"aten::no_such_operator": 1}
    assert found.links is None
    assert {json.loads(row.signature)["op"] for row in found.standard} >= {"aten::mm", "aten::mul"}


@needs_lab
@pytest.mark.slow
def test_lab_hosts_and_their_links_are_measured() -> None:
    found = calibrate([mm(128, "float32")], plan=LabPlan.uniform(2, bandwidth_bytes_per_s=25e6, cores=0.5))
    assert found.device.share == pytest.approx(0.5, rel=0.1)
    assert found.links is not None
    assert 0.8 < found.links.message_share <= 1.0
    assert 0.6 < found.links.all_reduce_share <= 1.0
    assert 0 < found.links.latency_ns < 20e6


@needs_lab
def test_probe_that_fails_shows_what_it_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandtable.lab.calibration._PROBES", "sandtable.no_such_room")
    with pytest.raises(LabError, match="No module named"):
        calibrate([])
