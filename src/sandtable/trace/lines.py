"""Lines: where in the user's script something happened."""

from dataclasses import dataclass

from sandtable.findings import place_text

__all__ = ["Line"]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the user's script; index 0 of every table of lines is the unknown line."""

    file: str = ""
    line: int = 0
    function: str = ""

    def __str__(self) -> str:
        return place_text(self.file, self.line) if self.file else "(unknown line)"
