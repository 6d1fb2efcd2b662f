"""The lab on this machine: links are as slow as planned, traffic is counted, and the hosts really work together."""

import sys
import threading
import time
from pathlib import Path

import pytest
from tests.lab.lab_state import lab_remains, needs_lab

from sandtable.errors import LabError
from sandtable.lab import Lab, LabHost, LabPlan, LabSite

pytestmark = needs_lab

TRANSFER = Path(__file__).parent / "transfer.py"
MB = 10**6


def seconds_of(lab: Lab, *, sender: int, receiver: int, num_bytes: int) -> float:
    """Return how long `num_bytes` take from one host to another over one TCP connection."""
    lines: list[str] = []
    command = [sys.executable, str(TRANSFER), str(sender), str(receiver), str(num_bytes)]
    result = lab.run(command, show=lambda _, line: lines.append(line), timeout_s=30)
    assert result.exit_code == 0, lines
    (found,) = [line for line in lines if line.startswith("seconds ")]
    return float(found.split()[1])


def test_transfer_takes_what_the_slower_of_two_unequal_cables_allows() -> None:
    with Lab(LabPlan.of_bandwidths([20e6, 20e6, 5e6])) as lab:
        assert seconds_of(lab, sender=0, receiver=1, num_bytes=10 * MB) == pytest.approx(0.5, rel=0.2)
        assert seconds_of(lab, sender=0, receiver=2, num_bytes=5 * MB) == pytest.approx(1.0, rel=0.2)
        assert seconds_of(lab, sender=2, receiver=0, num_bytes=5 * MB) == pytest.approx(1.0, rel=0.2)
    assert lab_remains() == []


def test_sites_share_one_slow_cable_and_hosts_of_one_site_do_not_use_it() -> None:
    hosts = tuple(LabHost(name=f"h{i}", bandwidth_bytes_per_s=40e6, site="ab"[i // 2]) for i in range(4))
    sites = (LabSite(name="a", bandwidth_bytes_per_s=4e6), LabSite(name="b", bandwidth_bytes_per_s=4e6))
    with Lab(LabPlan(hosts=hosts, sites=sites)) as lab:
        assert seconds_of(lab, sender=0, receiver=1, num_bytes=20 * MB) == pytest.approx(0.5, rel=0.2)
        assert seconds_of(lab, sender=1, receiver=2, num_bytes=4 * MB) == pytest.approx(1.0, rel=0.2)
        before = lab.run(["true"])
        assert before.sites["a"].sent_bytes < 10_000


def test_counters_count_what_was_sent_and_received() -> None:
    command = [sys.executable, str(TRANSFER), "0", "1", str(3 * MB)]
    result = Lab(LabPlan.uniform(2, bandwidth_bytes_per_s=0)).run(command, show=lambda *_: None)
    sender, receiver = (host.traffic for host in result.hosts)
    # Each packet of at most 1448 bytes carries 66 of headers: 4.6 % more.
    assert 3 * MB < sender.sent_bytes < 3.2 * MB
    assert receiver.received_bytes == pytest.approx(sender.sent_bytes, rel=0.01)
    assert receiver.sent_bytes < 0.1 * MB
    assert receiver.received_packets > 40


def test_host_with_half_a_core_gets_half_a_core() -> None:
    spin = "import time; s = time.perf_counter()\nwhile time.process_time() < 0.4: pass\nprint(time.perf_counter() - s)"
    found: list[float] = []
    plan = LabPlan(hosts=(LabHost(name="slow", cores=0.5),))
    Lab(plan).run([sys.executable, "-c", spin], show=lambda _, line: found.append(float(line)))
    # Starting the interpreter is part of the 0.4 s of processor time, but not of the span.
    assert found[0] == pytest.approx(0.8, rel=0.25)


def test_output_comes_by_host_and_the_exit_code_is_the_failing_hosts() -> None:
    lines: list[tuple[str, str]] = []
    code = 'echo "I am $(cat /proc/sys/kernel/hostname)"; echo no newline >&2; exit $NODE_RANK'
    result = Lab(LabPlan.uniform(2, bandwidth_bytes_per_s=1e6)).run(
        ["sh", "-c", code], show=lambda host, line: lines.append((host, line))
    )
    assert ("host1", "I am host1") in lines
    assert [host.exit_code for host in result.hosts] == [0, 1]
    assert result.exit_code == 1


def test_command_that_outlives_its_time_is_ended() -> None:
    start = time.monotonic()
    result = Lab(LabPlan.uniform(2, bandwidth_bytes_per_s=1e6)).run(["sleep", "60"], timeout_s=0.5)
    assert not result.in_time
    assert result.exit_code != 0
    assert time.monotonic() - start < 8
    assert lab_remains() == []


def test_two_labs_at_once_do_not_meet() -> None:
    plan = LabPlan.uniform(2, bandwidth_bytes_per_s=10e6)
    with Lab(plan) as one, Lab(plan) as other:
        assert seconds_of(one, sender=0, receiver=1, num_bytes=MB) > 0
        assert seconds_of(other, sender=1, receiver=0, num_bytes=MB) > 0
        assert len(lab_remains()) == 6
    assert lab_remains() == []


def test_torchrun_all_reduce_across_four_hosts_gives_the_sum() -> None:
    lines: list[str] = []
    script = Path(__file__).parent / "sum_ranks.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", str(script)]
    plan = LabPlan.uniform(4, bandwidth_bytes_per_s=25e6)
    result = Lab(plan).run(command, show=lambda _, line: lines.append(line), timeout_s=120)
    assert result.exit_code == 0, lines
    assert sum("sum 10.0 of 4 on host" in line for line in lines) == 4, lines


def test_hosts_know_each_other_without_asking_so_that_there_may_be_many() -> None:
    """All namespaces share the kernel's table of learned neighbours, which 40 × 39 entries would overflow."""
    lines: list[str] = []
    with Lab(LabPlan.uniform(40, bandwidth_bytes_per_s=0)) as lab:
        result = lab.run(["ip", "neigh", "show"], show=lambda _, line: lines.append(line), timeout_s=60)
    assert result.exit_code == 0
    assert sum("PERMANENT" in line for line in lines) == 40 * 39
    assert lab_remains() == []


def test_cable_that_is_out_carries_nothing_until_it_is_put_back() -> None:
    with Lab(LabPlan.uniform(2, bandwidth_bytes_per_s=20e6)) as lab:
        started = time.perf_counter()
        cutter = threading.Thread(target=_cut_for, args=[lab, 2.0])
        cutter.start()
        seconds_of(lab, sender=0, receiver=1, num_bytes=40 * MB)
        cutter.join()
        # Two seconds of data and two without; what was lost is sent again at intervals that double.
        assert 3.5 < time.perf_counter() - started < 12
        with pytest.raises(LabError, match="must be of a host"), lab.cut(2):
            pass


def _cut_for(lab: Lab, seconds: float) -> None:
    time.sleep(0.7)
    with lab.cut(1):
        time.sleep(seconds)
