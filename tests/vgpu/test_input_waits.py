"""What a batch takes is what it would take on a machine that has nothing else to do."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from sandtable.trace import Line
from sandtable.vgpu.observing import resources
from sandtable.vgpu.observing.resources import ResourceWatcher


def test_waiting_for_a_core_is_no_part_of_what_a_batch_takes(monkeypatch) -> None:
    monkeypatch.setattr("time.perf_counter_ns", Mock(side_effect=[0, 20_000_000]))
    monkeypatch.setattr(resources, "_queued_ns", Mock(side_effect=[3_000_000, 18_000_000]))
    log: Any = SimpleNamespace(number_of=lambda kind, thing: 1, place=lambda: Line("train.py", 3))
    watcher = ResourceWatcher(log, num_steps=3)
    batches = SimpleNamespace(_num_yielded=0, _num_workers=0)
    assert watcher._on_batch(lambda: "a batch", batches) == "a batch"
    assert [wait.nanoseconds for wait in watcher.waits] == [5_000_000]


def test_the_kernel_tells_how_long_this_thread_waited_for_a_core() -> None:
    before = resources._queued_ns()
    assert 0 <= before <= resources._queued_ns()
