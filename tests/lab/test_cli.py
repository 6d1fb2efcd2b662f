"""The commands of the lab."""

import re

import pytest
from tests.lab.lab_state import lab_remains, needs_lab
from typer.testing import CliRunner

from sandtable.cli import app
from sandtable.errors import LabError


@needs_lab
def test_lab_shows_each_hosts_output_and_traffic_and_leaves_with_the_commands_exit_code() -> None:
    line = "cat /etc/hosts; exit 3"
    done = CliRunner().invoke(app, ["lab", "lab", "--nnodes", "2", "--", "sh", "-c", line])
    assert done.exit_code == 3
    assert "[host1] 10.83.0.1 host0" in done.output
    assert re.search(r"^host0 .* 3$", done.output, re.MULTILINE)
    assert lab_remains() == []


def test_lab_without_what_it_needs_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    done = CliRunner().invoke(app, ["lab", "lab", "--", "true"])
    assert isinstance(done.exception, LabError)
    assert "iproute2" in str(done.exception)
