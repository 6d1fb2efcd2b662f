"""The marked function: `--step-marker module:function` names one, and each of its returns ends a step."""

from __future__ import annotations

import re
from types import FrameType

from sandtable.errors import LaunchError
from sandtable.step_marker import step

__all__ = ["MarkedFunction", "marker_of"]

_STEP = f"sandtable:{step.__name__}"
_CALLS_STEP = re.compile(r"\bsandtable\.step\(|^\s*from sandtable import .*\bstep\b", re.MULTILINE)


class MarkedFunction:
    """A function, found by name when it returns: it may be a method (`train:Trainer.step`) or local.

    `sandtable.step` can be named, too: it reports itself.
    """

    def __init__(self, marker: str) -> None:
        self._module, separator, self._name = marker.partition(":")
        if not (self._module and separator and self._name):
            raise LaunchError(
                f"a step marker must be module:function, but got '{marker}'; "
                "for a function of the script itself give __main__:function"
            )
        self.reports_itself = marker == _STEP

    def is_in(self, frame: FrameType) -> bool:
        """Return whether this is a frame of the function."""
        name = frame.f_code.co_qualname
        return frame.f_globals.get("__name__") == self._module and f".{name}".endswith(f".{self._name}")


def marker_of(source: str) -> str:
    """Return the marker of a script with this source: `sandtable.step` if it calls that, otherwise nothing."""
    return _STEP if _CALLS_STEP.search(source) else ""
