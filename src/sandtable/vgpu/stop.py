"""The stop: raised in the script when enough of it was captured."""

__all__ = ["SCRIPT_ENDED", "StopCapture"]

SCRIPT_ENDED = "script ended"
"""The stop reason of a rank that was not stopped."""


class StopCapture(BaseException):
    """Ends the script from inside; `reason` is "steps", "max-operators", or that of a rank it waits for."""

    def __init__(self, reason: str = "steps") -> None:
        super().__init__(reason)
        self.reason = reason
