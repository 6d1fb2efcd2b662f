"""The host clock counts what a rank sleeps, and nobody waits for long sleeps."""

import threading
import time

import pytest

from sandtable.vgpu.host_clock import HostWatch


@pytest.fixture
def watch(monkeypatch) -> HostWatch:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    made = HostWatch(lambda: ("train.py", 7))
    made.install()
    return made


def test_long_and_short_sleeps_count(watch: HostWatch):
    time.sleep(600)
    time.sleep(6.0)
    time.sleep(0.01)
    assert watch.read().slept == pytest.approx(606.01)
    assert (watch.read().file, watch.read().line) == ("train.py", 7)


def test_sleeps_of_other_threads_do_not_count(watch: HostWatch):
    heartbeat = threading.Thread(target=lambda: time.sleep(60))
    heartbeat.start()
    heartbeat.join()
    assert watch.read().slept == 0.0
