"""Replacing files whole: a crash leaves the old file or the new one, never half of one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["TEMPORARY_PREFIX", "replacing"]

TEMPORARY_PREFIX = ".sandtable-writing-"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what is written there (a file or a directory) becomes `path` at the end.

    If the body raises, `path` stays as it was.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")
    try:
        yield temporary
        if temporary.is_dir() and path.is_dir():
            shutil.rmtree(path)
        temporary.replace(path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
