"""Findings: what is wrong with a run, as data that a terminal, a report or an editor can show.

A finding names the rule that was broken, the ranks concerned, what each did and on which line of the script,
and the remedy. Errors carry findings (see `errors.py`); a run that ends well may have some, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

__all__ = ["Evidence", "Finding", "Severity", "name_ranks", "place_text", "worst_first"]

_MAX_EVIDENCE = 8
_MAX_RANKS = 8
_NOTEBOOK_CELL = re.compile(r"\.ipynb cell \d+$")


class Severity(StrEnum):
    """How bad it is: an error stops the run on a real cluster, a warning spoils its result or its speed."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observation: what `ranks` did, and on which line of the script; `line` is 0 where no line is known."""

    ranks: tuple[int, ...]
    text: str
    file: str = ""
    line: int = 0

    @property
    def place(self) -> str:
        """The script line as `place_text` writes it, or nothing."""
        return place_text(self.file, self.line) if self.file else ""

    def __str__(self) -> str:
        place = f" at {self.place}" if self.file else ""
        return f"{name_ranks(self.ranks)} {self.text}{place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A broken rule. `rule` is its stable name; `message` states in one sentence what must hold and what was seen."""

    rule: str
    severity: Severity
    message: str
    ranks: tuple[int, ...]
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""

    def to_json(self) -> str:
        """Return the finding as text that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Finding:
        """Invert `to_json`."""
        fields = json.loads(text)
        evidence = tuple(Evidence(**{**item, "ranks": tuple(item["ranks"])}) for item in fields.pop("evidence"))
        ranks, severity = tuple(fields.pop("ranks")), Severity(fields.pop("severity"))
        return cls(**fields, ranks=ranks, severity=severity, evidence=evidence)

    def __str__(self) -> str:
        lines = [f"{self.message}:" if self.evidence else self.message]
        lines += [f"  {evidence}" for evidence in self.evidence[:_MAX_EVIDENCE]]
        if len(self.evidence) > _MAX_EVIDENCE:
            lines.append(f"  and {len(self.evidence) - _MAX_EVIDENCE} more")
        return "\n".join([*lines, self.remedy] if self.remedy else lines)


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings by severity, otherwise in their order."""
    return tuple(sorted(findings, key=lambda finding: list(Severity).index(finding.severity)))


def name_ranks(ranks: Sequence[int]) -> str:
    """Name a few ranks in words: `rank 3`, `ranks 0, 1, 2`."""
    shown = ", ".join(map(str, ranks[:_MAX_RANKS])) + (", ..." if len(ranks) > _MAX_RANKS else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def place_text(file: str, line: int) -> str:
    """Name a line of the script: `train.py:12`, or in a notebook `train.ipynb cell 3 line 12`."""
    return f"{file} line {line}" if _NOTEBOOK_CELL.search(file) else f"{file}:{line}"
