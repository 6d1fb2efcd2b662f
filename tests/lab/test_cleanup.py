"""A lab leaves nothing behind: not after Ctrl-C or SIGTERM, and after SIGKILL only until the next lab starts."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.lab.lab_state import lab_remains, needs_lab

from sandtable.lab import Lab, LabPlan
from sandtable.lab.cleanup import remove_abandoned_labs
from sandtable.lab.network import is_abandoned, new_prefix

OWNER = """
from sandtable.lab import Lab, LabPlan
Lab(LabPlan.uniform(2, bandwidth_bytes_per_s=1e6, cores=0.3)).run(["sh", "-c", "echo up; sleep 1234567"])
"""


@pytest.fixture
def owner() -> "Iterator[subprocess.Popen[str]]":
    """Start another process with a lab that runs commands."""
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert [process.stdout.readline().strip()[-2:] for _ in range(2)] == ["up", "up"]
    yield process
    process.kill()
    process.wait()
    process.stdout.close()
    remove_abandoned_labs()


def sleepers() -> int:
    """Return how many processes of the labs' commands are alive."""
    count = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            count += file.read_bytes() == b"sleep\x001234567\x00"
    return count


def wait_until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


@needs_lab
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_lab_leaves_nothing(owner: "subprocess.Popen[str]", number: signal.Signals) -> None:
    assert len(lab_remains(owner.pid)) == 3
    assert wait_until(lambda: sleepers() == 2)
    owner.send_signal(number)
    assert owner.wait(timeout=10) != 0
    assert lab_remains(owner.pid) == []
    assert sleepers() == 0


@needs_lab
def test_killed_lab_ends_its_processes_at_once_and_the_next_lab_removes_the_rest(
    owner: "subprocess.Popen[str]",
) -> None:
    owner.kill()
    owner.wait()
    assert wait_until(lambda: sleepers() == 0)
    assert len(lab_remains(owner.pid)) == 3
    with Lab(LabPlan.uniform(1, bandwidth_bytes_per_s=1e6)):
        assert lab_remains(owner.pid) == []


@needs_lab
def test_sweeping_spares_the_labs_of_the_living(owner: "subprocess.Popen[str]") -> None:
    remove_abandoned_labs()
    assert len(lab_remains(owner.pid)) == 3
    assert wait_until(lambda: sleepers() == 2)


@needs_lab
def test_lab_that_cannot_be_built_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sandtable.lab.network.LabNetwork._shape", fail)
    with pytest.raises(KeyboardInterrupt):
        Lab(LabPlan.uniform(2, bandwidth_bytes_per_s=1e6)).run(["true"])
    assert lab_remains() == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which is Linux's")
def test_name_is_abandoned_when_its_process_is_gone_or_is_another() -> None:
    prefix = new_prefix()
    assert not is_abandoned(f"{prefix}host0")
    pid, start = prefix.split("-")[1:3]
    assert is_abandoned(f"sandtable-{pid}-{int(start) - 1}-0-host0"), "the same id, but a process started later"
    process = subprocess.Popen(["true"])
    process.wait()
    assert is_abandoned(f"sandtable-{process.pid}-{start}-0-host0")


def test_names_of_others_are_never_abandoned() -> None:
    for name in ("blue", "sandtable", "sandtable-x-1-0-a", f"docker-{os.getpid()}-1-0-"):
        assert not is_abandoned(name)


def test_prefixes_of_one_process_differ() -> None:
    assert new_prefix() != new_prefix()
