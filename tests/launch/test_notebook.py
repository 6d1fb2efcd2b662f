"""A notebook is its code cells, without what only IPython understands."""

from pathlib import Path

import pytest
from tests.launch.notebooks import write_notebook

from sandtable.errors import LaunchError
from sandtable.launch import cell_lines, is_notebook, read_notebook, require_script


def sources(path: Path, *cells: str) -> list[str]:
    return [cell.source for cell in read_notebook(write_notebook(path / "n.ipynb", *cells)).cells]


def skipped(path: Path, *cells: str) -> list[tuple[str, int, str]]:
    lines = read_notebook(write_notebook(path / "n.ipynb", *cells)).skipped
    return [(line.file.removeprefix(f"{path}/"), line.line, line.text) for line in lines]


@pytest.mark.parametrize(
    ("cell", "source"),
    [
        ("x = 1\ny = 2", "x = 1\ny = 2"),
        ("!pip install torch\nx = 1", "pass\nx = 1"),
        ("%matplotlib inline\nx = 1", "pass\nx = 1"),
        ("if x:\n    !ls\nelse:\n    %cd /tmp", "if x:\n    pass\nelse:\n    pass"),
        ("files = !ls\nn = %env HOME", "files = None\nn = None"),
        ("torch.nn.Linear?\n?print", "pass\npass"),
        ("x = (7\n  % 3)", "x = (7\n  % 3)"),
        ("text = '''\n!ls\n%time\n'''", "text = '''\n!ls\n%time\n'''"),
        ("%%time\nx = 1", "\nx = 1"),
        ("%%bash\nls\nx = 1", ""),
        ("x = = 1", "x = = 1"),
    ],
)
def test_only_what_python_rejects_and_ipython_runs_is_left_out(tmp_path: Path, cell: str, source: str) -> None:
    assert sources(tmp_path, cell) == [source]


def test_skipped_lines_are_named_by_code_cell_and_line(tmp_path: Path) -> None:
    assert skipped(tmp_path, "import os\n!ls -l", "x = 1", "\n%%bash\nls") == [
        ("n.ipynb cell 1", 2, "!ls -l"),
        ("n.ipynb cell 3", 2, "%%bash"),
    ]


def test_the_lines_of_a_cell_are_found_by_its_file_name(tmp_path: Path) -> None:
    path = write_notebook(tmp_path / "n.ipynb", "!ls", "x = 1\ny = 2")
    assert cell_lines(f"{path} cell 1") == ("!ls",)
    assert cell_lines(f"{path} cell 2") == ("x = 1", "y = 2")
    for file in (path, f"{path} cell 3", f"{path} cell 0x", str(tmp_path / "other.ipynb cell 1"), __file__):
        assert cell_lines(file) is None


def test_what_is_no_python_notebook_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "n.ipynb"
    assert is_notebook(str(path))
    for text in ("", "[]", "{}", '{"cells": 1}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(LaunchError, match="must be a JSON file with cells"):
            require_script(str(path))
    write_notebook(path, "1 + 1", language="julia")
    with pytest.raises(LaunchError, match=r"must be in Python, but .* is in julia"):
        require_script(str(path))
