"""A Jupyter notebook as a script: its code cells, one after another, without what only IPython understands.

Each cell is a file of its own, `train.ipynb cell 3`, so that a line of it can be found: cell 3 is the third code cell,
which shows `[3]` after all cells were run.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandtable.errors import LaunchError

__all__ = ["Notebook", "NotebookCell", "SkippedLine", "cell_lines", "is_notebook", "notebook_of", "read_notebook"]

_SUFFIX = ".ipynb"
_CELL = re.compile(r"(.*\.ipynb) cell (\d+)")

_TRANSPARENT_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun")
"""Cell magics that run the cell as Python; of all others, the whole cell is skipped."""

_MAGIC = re.compile(r"\s*(%|!|\?|[\w.]+\?\??\s*$)")
_ASSIGNED_MAGIC = re.compile(r"(\s*[\w.\[\], ]+=\s*)[%!]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedLine:
    """A line that only IPython understands, such as `!pip install torch`."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookCell:
    """A code cell: the name it has as a file, what was written in it, and what of that Python can run."""

    file: str
    lines: tuple[str, ...]
    source: str
    skipped: tuple[SkippedLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notebook:
    """The code cells of a notebook, in order."""

    cells: tuple[NotebookCell, ...]

    @property
    def skipped(self) -> Iterator[SkippedLine]:
        """The lines that do not run."""
        return (line for cell in self.cells for line in cell.skipped)


def is_notebook(script: str) -> bool:
    """Return whether the script is a notebook, by its name."""
    return script.endswith(_SUFFIX)


def read_notebook(script: str) -> Notebook:
    """Read a notebook, a JSON file as Jupyter writes it."""
    content = _content(script)
    language = content.get("metadata", {}).get("language_info", {}).get("name", "python")
    if language != "python":
        raise LaunchError(f"a notebook must be in Python, but {script} is in {language}; convert it first")
    texts = (_text(cell) for cell in content["cells"] if cell.get("cell_type") == "code")
    return Notebook(cells=tuple(_cell(f"{script} cell {number}", text) for number, text in enumerate(texts, start=1)))


def cell_lines(file: str) -> tuple[str, ...] | None:
    """Return the lines of the cell that goes by this file name; None if it is no cell, or cannot be read."""
    match = _CELL.fullmatch(file)
    if match is None:
        return None
    try:
        return read_notebook(match[1]).cells[int(match[2]) - 1].lines
    except (LaunchError, IndexError):
        return None


def notebook_of(file: str) -> str | None:
    """Return the notebook of the cell that goes by this file name; None if it is no cell."""
    match = _CELL.fullmatch(file)
    return None if match is None else match[1]


def _content(script: str) -> dict[str, Any]:
    try:
        content = json.loads(Path(script).read_text(encoding="utf-8"))
        if isinstance(content["cells"], list):
            return dict(content)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise LaunchError(f"a notebook must be a JSON file with cells, but {script} is not; save it with Jupyter again")


def _text(cell: dict[str, Any]) -> str:
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)


def _cell(file: str, text: str) -> NotebookCell:
    lines = text.split("\n")
    kept, skipped = list(lines), []
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if lines[first].startswith(_TRANSPARENT_MAGICS):
        kept[first] = ""
    elif lines[first].startswith("%%"):
        kept, skipped = [], [first]
    while (number := _magic_line(kept)) is not None:
        assigned = _ASSIGNED_MAGIC.match(kept[number])
        indent = kept[number][: len(kept[number]) - len(kept[number].lstrip())]
        kept[number] = f"{assigned[1]}None" if assigned else f"{indent}pass"
        skipped.append(number)
    return NotebookCell(
        file=file,
        lines=tuple(lines),
        source="\n".join(kept),
        skipped=tuple(
            SkippedLine(file=file, line=number + 1, text=lines[number].strip()) for number in sorted(skipped)
        ),
    )


def _magic_line(lines: list[str]) -> int | None:
    """Find the first line that Python rejects and IPython would run: a leading % elsewhere may be a continuation."""
    try:
        ast.parse("\n".join(lines))
    except SyntaxError as error:
        number = (error.lineno or 0) - 1
        if 0 <= number < len(lines) and (_MAGIC.match(lines[number]) or _ASSIGNED_MAGIC.match(lines[number])):
            return number
    return None
