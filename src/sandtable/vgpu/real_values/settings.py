"""Settings of a run for its numbers."""

from dataclasses import dataclass

__all__ = ["ValueSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSettings:
    """Each rank writes `rank<number>.values` in `directory`; `guide` is a file of what it takes from another run.

    Without `has_dropout` no element is left out.
    """

    directory: str
    guide: str = ""
    has_dropout: bool = True

    def path(self, rank: int) -> str:
        """Return the file that a rank writes."""
        return f"{self.directory}/rank{rank}.values"
