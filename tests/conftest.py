"""What every process of the tests starts with: one thread to compute on, and Ctrl-C as it is on a terminal.

pytest runs one worker a core, and ranks share those. A shell lets jobs in the background ignore SIGINT, and so would
everything they start: tests that interrupt a process would wait in vain.
"""

import os
import signal
from collections import defaultdict
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch
os.environ.setdefault("SANDTABLE_RAISE_IN_RULES", "1")  # in a test, a rule that fails must not be a note
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first, the slowest at the front: one that starts last leaves the other cores idle."""
    minutes: defaultdict[Path, float] = defaultdict(float)
    for item in items:
        if mark := item.get_closest_marker("slow"):
            minutes[item.path] += mark.kwargs.get("minutes", 0.25)
    items.sort(key=lambda item: -minutes[item.path])
