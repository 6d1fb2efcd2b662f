"""The README shows what its commands really print."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OUTPUT = re.compile(r"^```\n\$ pip install \.\n\$ sandtable (run .*)\n((?:.*\n)*?)```$", flags=re.MULTILINE)
# Lines that differ from machine to machine.
VARIES = ("rehearsed ",)


@pytest.mark.slow
def test_the_command_in_the_readme_prints_what_the_readme_shows(tmp_path: Path) -> None:
    [(command, shown)] = OUTPUT.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    ran = subprocess.run(
        [sys.executable, "-c", "from sandtable.cli import main; main()", *_saved_in(tmp_path, shlex.split(command))],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert _comparable(ran.stdout) == _comparable(shown)


def _saved_in(folder: Path, arguments: list[str]) -> list[str]:
    """Return the arguments of `sandtable run`, with its files in `folder`."""
    return [arguments[0], "--out", str(folder), *arguments[1:]]


def _comparable(output: str) -> list[str]:
    lines = [line.rstrip() for line in output.strip().splitlines()]
    figures = lines[: next(number for number, line in enumerate(lines) if line.startswith("report "))]
    return [line for line in figures if not line.startswith(VARIES)]
