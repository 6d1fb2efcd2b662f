"""Every error meant for the user, as one small tree.

    SandtableError              printed by the command line as one clean message; `exit_code` is its exit status
    ├── ClusterError            a machine, device or cluster file that is unknown, malformed or too small
    ├── TraceError              a file that is not a trace, is damaged, or has another version
    ├── LaunchError             a run that cannot be started: missing script, impossible options
    ├── FindingError            something wrong with the run itself, described by findings
    │   ├── ScriptError         the training script raised or exited with a non-zero status on one rank
    │   ├── MismatchError       ranks whose collectives do not agree, or that wait for each other forever
    │   └── SimulationError     a captured run whose time cannot be computed, because it stalls
    ├── ParityError             runs with one rank and with many that cannot be compared
    ├── WhatIfError             a change to a rehearsal that is out of range
    ├── LabError                a lab that cannot be built here, or a command it cannot run
    ├── MethodError             a way to train that cannot work as combined, or was used in a way it does not allow
    ├── PlanError               a model that cannot be split over the machines as requested
    ├── StudyError              a study that cannot be made: wrong settings, missing data, a run that failed
    ├── ReportError             a report that cannot be made: no summary, or one of another version
    ├── BuildError              the C++ cores of the virtual GPU and of the clock could not be compiled or loaded
    └── ValidationSetError      a file of published rows that is malformed or cannot be rehearsed

A message gives the rule, the value and the remedy: `tp (6) must divide num_heads (32); try 1, 2, 4 or 8`.
Broken invariants inside sandtable are `assert`s and ordinary exceptions: they are bugs, and keep their traceback.
"""

from __future__ import annotations

from sandtable.findings import Finding

__all__ = [
    "BuildError",
    "ClusterError",
    "FindingError",
    "LabError",
    "LaunchError",
    "MethodError",
    "MismatchError",
    "ParityError",
    "PlanError",
    "ReportError",
    "SandtableError",
    "ScriptError",
    "SimulationError",
    "StudyError",
    "TraceError",
    "ValidationSetError",
    "WhatIfError",
]


class SandtableError(Exception):
    """Base of every error shown to the user as a message without a traceback."""

    exit_code: int = 1


class ClusterError(SandtableError):
    """A cluster that is unknown, malformed or too small."""


class TraceError(SandtableError):
    """A file that cannot be read as a trace."""


class LaunchError(SandtableError):
    """A run that cannot be started."""


class FindingError(SandtableError):
    """Something wrong with the run itself. Constructed from findings, which survive being pickled."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__(*findings)
        self.findings = findings

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))


class ScriptError(FindingError):
    """The script under rehearsal failed; `traceback` is its own, without the launcher's frames."""

    def __init__(self, finding: Finding, traceback: str, exit_code: int = 1) -> None:
        super().__init__(finding)
        self.args = (finding, traceback, exit_code)
        self.traceback = traceback
        self.exit_code = exit_code

    @property
    def rank(self) -> int:
        """The rank that failed first."""
        return self.findings[0].ranks[0]

    def __str__(self) -> str:
        body = self.traceback.strip("\n")
        return f"{self.findings[0].message}\n{body}" if body else self.findings[0].message


class MismatchError(FindingError):
    """Ranks whose collectives do not match, or that wait for something that never comes."""


class SimulationError(FindingError):
    """A captured run whose time cannot be computed."""


class ParityError(SandtableError):
    """Runs with one rank and with many that cannot be made, or not be compared."""


class WhatIfError(SandtableError):
    """A change to a rehearsal that is out of range."""


class LabError(SandtableError):
    """A lab that cannot be built on this machine, or cannot run a command."""


class MethodError(SandtableError):
    """A combination of sync, exchange and compression that cannot work, or a use it does not allow."""


class ReportError(SandtableError):
    """A report that cannot be made: no summary, or one of another version."""


class BuildError(SandtableError):
    """The C++ core of the virtual GPU could not be built or loaded."""


class StudyError(SandtableError):
    """A study with invalid settings, data or results, or with a run that failed."""


class PlanError(SandtableError):
    """A split of a model, or a search for launch parameters, that cannot be made as requested."""


class ValidationSetError(SandtableError):
    """Published rows that are malformed, unknown, or cannot be rehearsed as written."""
