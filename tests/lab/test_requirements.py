"""Where no lab can be built, one line gives the reason."""

import os
import sys
from pathlib import Path

import pytest

from sandtable.errors import LabError
from sandtable.lab import Lab, LabPlan

PLAN = LabPlan.uniform(2, bandwidth_bytes_per_s=1e6)


def message_of_starting() -> str:
    with pytest.raises(LabError) as raised:
        Lab(PLAN).run(["true"])
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a path with everything the lab requires, and nothing else."""
    for name in ("ip", "tc", "unshare", "setpriv"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_without_root_it_says_to_use_sudo(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    message = message_of_starting()
    assert "root" in message
    assert "1000" in message
    assert "sudo" in message


@pytest.mark.parametrize(("program", "package"), [("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux")])
def test_missing_program_is_named_with_its_package(programs: Path, program: str, package: str) -> None:
    (programs / program).unlink()
    message = message_of_starting()
    assert f"'{program}'" in message
    assert f"apt-get install {package}" in message


def test_another_system_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux" in message_of_starting()
