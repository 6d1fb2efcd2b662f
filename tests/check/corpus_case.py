"""A case of the corpus: a script with one mistake, and the same script without it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from sandtable import Launcher, LaunchOptions, Rehearsal, rehearse
from sandtable.findings import Finding, Severity

__all__ = ["CORPUS", "Case", "cases"]

CORPUS = Path(__file__).parent / "corpus"
_HEADER = re.compile(r"^# (rule|source|ranks|nodes|steps): (.+)$", re.MULTILINE)
_MARK = "# <-- here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One folder of the corpus."""

    name: str
    folder: Path
    rules: tuple[str, ...]
    source: str
    ranks: int = 2
    nodes: int = 1
    steps: int = 3
    lines: frozenset[int] = field(default_factory=frozenset)
    """The lines of `wrong.py` that a finding may name."""

    @classmethod
    def read(cls, folder: Path) -> Case:
        """Read the comments of `wrong.py`."""
        text = (folder / "wrong.py").read_text(encoding="utf-8")
        header = dict(_HEADER.findall(text))
        numbers = {name: int(header[name]) for name in ("ranks", "nodes", "steps") if name in header}
        marked = (number for number, line in enumerate(text.splitlines(), 1) if line.rstrip().endswith(_MARK))
        rules = tuple(name.strip() for name in header["rule"].split(","))
        return cls(
            name=folder.name, folder=folder, rules=rules, source=header["source"], lines=frozenset(marked), **numbers
        )

    def rehearse(self, script: str, launcher: Launcher, out: Path | None = None) -> Rehearsal:
        """Rehearse `wrong.py` or `right.py` as `sandtable check` does."""
        options = LaunchOptions(ranks_per_node=self.ranks // self.nodes, launcher=launcher)
        return rehearse(
            self.folder / script, cluster="dgx-a100", nodes=self.nodes, steps=self.steps, out=out, options=options
        )

    def has_rule(self, run: Rehearsal) -> bool:
        """Whether a right rule found something."""
        return any(finding.rule in self.rules for finding in run.findings)

    def has_line(self, run: Rehearsal) -> bool:
        """Whether a finding of a right rule names a marked line."""
        return any(
            evidence.file.endswith("wrong.py") and evidence.line in self.lines
            for finding in run.findings
            if finding.rule in self.rules
            for evidence in finding.evidence
        )

    @staticmethod
    def accusations(run: Rehearsal) -> list[Finding]:
        """Return the errors and warnings about a script."""
        return [finding for finding in run.findings if finding.severity is not Severity.NOTE]


def cases() -> list[Case]:
    """Return all cases, by name."""
    return [Case.read(folder.parent) for folder in sorted(CORPUS.glob("*/wrong.py"))]
