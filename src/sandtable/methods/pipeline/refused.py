"""Refused: why a model could not be traced, and where in its own code that was."""

import traceback
from pathlib import Path

import torch
from torch.fx.proxy import TraceError

__all__ = ["Refused"]


class Refused(Exception):
    """Tracing stopped, for `error`, inside the module called `path` ("" is the model itself)."""

    def __init__(self, path: str, error: Exception) -> None:
        super().__init__(f"{_reason(error)}{_place(error)}")
        self.path = path


def _reason(error: Exception) -> str:
    first = "".join(str(error).strip().splitlines()[:1])
    return first if isinstance(error, TraceError) and first else f"{type(error).__name__} {first}".strip()


def _place(error: Exception) -> str:
    """The last line of the model's own code that the error came through."""
    others = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    return f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
