"""Source lines: the text around the script lines that findings point at, while the script can still be read."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sandtable.launch import cell_lines

__all__ = ["Excerpt", "quote_lines", "shorten_path"]

CONTEXT_LINES = 3
MAX_LINE_LENGTH = 300
MAX_FILE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """Consecutive lines of a file around `line`; `first` is the number of the first of them."""

    file: str
    line: int
    first: int
    lines: tuple[str, ...]


def quote_lines(places: Iterable[tuple[str, int]]) -> dict[str, Excerpt]:
    """Return an excerpt for each `(file, line)` that can be read, keyed by `file:line`.

    Only Python files and notebooks are read: a trace from elsewhere cannot make a report quote other files.
    """
    read = cache(_read)
    excerpts = {}
    for file, line in dict.fromkeys(places):
        lines = read(file)
        if 0 < line <= len(lines):
            first = max(line - CONTEXT_LINES, 1)
            quoted = [text[:MAX_LINE_LENGTH] for text in lines[first - 1 : line + CONTEXT_LINES]]
            while len(quoted) > line - first + 1 and not quoted[-1].strip():
                quoted.pop()
            excerpts[f"{file}:{line}"] = Excerpt(file=file, line=line, first=first, lines=tuple(quoted))
    return excerpts


def shorten_path(file: str) -> str:
    """Return the path relative to the working directory, if it is below that."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _read(file: str) -> list[str]:
    cell = cell_lines(file)
    if cell is not None:
        return [line.expandtabs(4) for line in cell]
    path = Path(file)
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return []
        return path.read_text(encoding="utf-8", errors="replace").expandtabs(4).split("\n")
    except (OSError, ValueError):
        return []
