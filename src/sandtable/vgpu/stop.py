"""The stop: raised in the script when enough of it was captured, or when the capture failed elsewhere."""

__all__ = ["DEADLOCK", "FAILED", "FAILURES", "MISMATCH", "OTHER_RANK_FAILED", "SCRIPT_ENDED", "StopCapture"]

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
