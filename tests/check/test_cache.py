"""A cache that is emptied once before training and once after it is not emptied in the loop."""

from types import SimpleNamespace
from typing import Any

import pytest

from sandtable.check.cache import empty_cache_in_loop
from sandtable.trace import CacheFlush, Line, Observations


@pytest.mark.parametrize(("num_steps", "steps"), [(1, (0, 1)), (2, (0, 2)), (3, (0, 3))])
def test_setting_up_and_taking_down_are_no_steps(num_steps: int, steps: tuple[int, ...]) -> None:
    flushes = tuple(CacheFlush(row=step, step=step, place=Line("train.py", 7)) for step in steps)
    trace: Any = SimpleNamespace(num_steps=num_steps, observations={0: Observations(rank=0, cache_flushes=flushes)})
    assert list(empty_cache_in_loop(trace, None)) == []
