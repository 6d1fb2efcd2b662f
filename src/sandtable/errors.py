"""Every error that is the user's to read, as one small tree.

    SandtableError              printed by the command line as one clean message; `exit_code` says how the process ends
    ├── ClusterError            a machine, device or cluster file that is unknown, malformed or too small
    ├── TraceError              a file that is not a trace, is damaged, or has another version
    ├── LaunchError             a run that cannot be started: missing script, impossible options
    ├── ScriptError             the training script itself raised or left with a non-zero status, on one rank
    ├── MismatchError           ranks whose collectives do not agree, or that wait for each other for ever
    ├── SimulationError         a run whose time cannot be worked out: it stands still, or the what-if is impossible
    ├── LabError                a lab that cannot be built here, or a command it cannot run
    ├── MethodError             a way to train that cannot work as combined, or was used in a way it does not allow
    ├── PlanError               a model or machines that cannot be split as asked
    ├── StudyError              a study that cannot be made: wrong settings, missing data, a run that failed
    ├── ReportError             a report that cannot be made: no summary, or one of another version
    ├── BuildError              the C++ cores of the virtual GPU and of the clock could not be compiled or loaded
    └── ValidationSetError      a file of published rows that is malformed or cannot be rehearsed

A message gives the rule, the value and the remedy: `tp (6) must divide num_heads (32); try 1, 2, 4 or 8`.
Broken invariants inside sandtable are `assert`s and ordinary exceptions: they are bugs, and keep their traceback.
"""

__all__ = [
    "BuildError",
    "ClusterError",
    "LabError",
    "LaunchError",
    "MethodError",
    "MismatchError",
    "PlanError",
    "ReportError",
    "SandtableError",
    "ScriptError",
    "SimulationError",
    "StudyError",
    "TraceError",
    "ValidationSetError",
]


class SandtableError(Exception):
    """Base of every error shown to the user as a message without a traceback."""

    exit_code: int = 1


class ClusterError(SandtableError):
    """A cluster that is unknown, malformed, or cannot hold what is asked of it."""


class TraceError(SandtableError):
    """A file that cannot be read as a trace."""


class LaunchError(SandtableError):
    """A run that cannot be started as asked."""


class ScriptError(SandtableError):
    """The script under rehearsal failed on `rank`; `traceback` is its own, without the launcher's frames.

    All arguments are positional in `args`, so that the error survives being pickled between processes.
    """

    def __init__(self, rank: int, traceback: str, exit_code: int = 1) -> None:
        super().__init__(rank, traceback, exit_code)
        self.rank = rank
        self.traceback = traceback
        self.exit_code = exit_code

    def __str__(self) -> str:
        headline = f"rank {self.rank} of the script failed with exit code {self.exit_code}"
        body = self.traceback.strip("\n")
        return f"{headline}\n{body}" if body else headline


class MismatchError(SandtableError):
    """Ranks whose collectives do not match, or that can never be satisfied."""


class SimulationError(SandtableError):
    """A captured run whose time cannot be worked out."""


class LabError(SandtableError):
    """A lab that cannot be built on this machine, or that was asked for something it cannot do."""


class MethodError(SandtableError):
    """A combination of sync, exchange and compression that cannot work, or a use it does not allow."""


class ReportError(SandtableError):
    """A report that cannot be made from what was given."""


class BuildError(SandtableError):
    """The C++ core of the virtual GPU could not be built or loaded."""


class StudyError(SandtableError):
    """A study whose settings, data or results are not what they must be, or one of whose runs failed."""


class PlanError(SandtableError):
    """A model or machines that cannot be split as asked."""


class ValidationSetError(SandtableError):
    """Published rows that are malformed, unknown, or cannot be rehearsed as written."""
