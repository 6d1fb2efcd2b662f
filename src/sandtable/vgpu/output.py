"""Output: what a rank's process writes to the terminal."""

import os
import sys

__all__ = ["flush_output", "silence_output"]


def flush_output() -> None:
    """Write what is left in the buffers of the standard streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue


def silence_output() -> None:
    """Drop what this process writes from now on.

    A script that is ended in the middle of a step may log the exception that ends it, or say that training was
    interrupted, which reads like a failure.
    """
    flush_output()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
