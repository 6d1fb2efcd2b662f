"""The stop: raised in the script when enough of it was captured, or when the capture cannot go on."""

__all__ = [
    "DEADLOCK",
    "ENOUGH_STEPS",
    "FAILED",
    "FAILURES",
    "MISMATCH",
    "OTHER_RANK_FAILED",
    "SCRIPT_ENDED",
    "ProcessRejected",
    "StopCapture",
]

ENOUGH_STEPS = "steps"
"""The stop reason of a rank that made all wanted steps."""

SCRIPT_ENDED = "script ended"
"""The stop reason of a rank that was not stopped."""

FAILED = "failed"
"""The stop reason of a rank on which the script failed."""

OTHER_RANK_FAILED = "another rank failed"
DEADLOCK = "deadlock"
MISMATCH = "collective mismatch"

FAILURES = frozenset({FAILED, OTHER_RANK_FAILED, DEADLOCK, MISMATCH})
"""The stop reasons of captures that failed."""


class StopCapture(BaseException):
    """Ends the script from inside; `reason` is "steps", "max-operators", or that of a rank it waits for."""

    def __init__(self, reason: str = "steps") -> None:
        super().__init__(reason)
        self.reason = reason


class ProcessRejected(BaseException):
    """Ends the script where it starts a process that cannot run on virtual GPUs, at `file` and `line`."""

    def __init__(self, message: str, *, file: str, line: int, remedy: str, rule: str = "process-rejected") -> None:
        super().__init__(message)
        self.rule = rule
        self.message = message
        self.file = file
        self.line = line
        self.remedy = remedy
