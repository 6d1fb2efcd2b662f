"""Seeds: what the script seeds the generators of torch, NumPy and Python with."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from sandtable.trace import EventKind
from sandtable.vgpu.observing.events import EventLog, before
from sandtable.vgpu.observing.training import is_called_by_library

__all__ = ["follow_seeds"]

_MOST_SEEDS = 256


def follow_seeds(log: EventLog) -> None:
    """Note the seeds that are set from now on."""
    import torch

    seen = 0

    def noting(how: str) -> Callable[..., None]:
        def notice(seed: Any = None, *args: Any, **options: Any) -> None:
            nonlocal seen
            seen += 1
            if seen <= _MOST_SEEDS and isinstance(seed, int) and not is_called_by_library():
                log.note(EventKind.SEEDED, how=how, seed=seed)

        return notice

    before(torch, "manual_seed", noting("torch.manual_seed"))
    before(torch.cuda, "manual_seed", noting("torch.cuda.manual_seed"))
    before(torch.cuda, "manual_seed_all", noting("torch.cuda.manual_seed_all"))
    before(random, "seed", noting("random.seed"))
    if (numpy := sys.modules.get("numpy")) is not None:
        before(numpy.random, "seed", noting("numpy.random.seed"))
