"""Every file of bench/ is a benchmark: its docstring gives the commands, and it explains its flags."""

import ast
from pathlib import Path

import pytest
from tests.bench.benchmarks import BENCHMARKS, run


@pytest.mark.parametrize("file", BENCHMARKS, ids=lambda file: file.stem)
def test_the_docstring_gives_the_commands(file: Path) -> None:
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    command = f"python bench/{file.name}"
    assert f"    {command}" in docstring or f"    sudo {command}" in docstring, f"{file.name}: show `{command}`"
    assert f"{command} --quick" in docstring, f"{file.name}: show `{command} --quick`"
    assert "JSON object" in " ".join(docstring.split()), f"{file.name}: name the figures of the last line"


@pytest.mark.parametrize("file", BENCHMARKS, ids=lambda file: file.stem)
def test_help_lists_the_flags(file: Path) -> None:
    assert "--quick" in run(file, "--help")
