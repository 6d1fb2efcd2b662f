"""Workers: the random numbers that the processes of a data loader begin with, and whether they draw any.

Workers are forked, so whatever generator lies in a data set exists once in each of them, in the same state. Each worker
reports the states of all generators before and after its first batch, through a file in memory that it inherits.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
import zlib
from collections.abc import Iterator
from typing import Any

__all__ = ["WorkerReports"]

_MOST_OBJECTS = 200
_MOST_DEPTH = 3


class WorkerReports:
    """What the workers of this process's loaders reported."""

    def __init__(self) -> None:
        self._file = -1
        self._pass = 0

    def install(self) -> None:
        """Have the workers of loaders report from now on."""
        from torch.utils.data import _utils

        original = _utils.worker._worker_loop

        @functools.wraps(original)
        def loop(kind: Any, data_set: Any, *args: Any, **options: Any) -> Any:
            if self._file >= 0:
                self._watch_first_batch(data_set)
            return original(kind, data_set, *args, **options)

        _utils.worker._worker_loop = loop  # type: ignore[assignment]

    def begin_pass(self, loader: Any, number: int) -> None:
        """Note which pass the workers that are started next belong to."""
        self._pass = number
        is_forked = (
            loader.multiprocessing_context in (None, "fork") or "Fork" in type(loader.multiprocessing_context).__name__
        )
        if loader.num_workers and is_forked and self._file < 0:
            self._file = os.memfd_create("sandtable-workers")

    def read(self) -> list[dict[str, Any]]:
        """Return all reports."""
        if self._file < 0:
            return []
        text = os.pread(self._file, os.fstat(self._file).st_size, 0).decode()
        return [json.loads(line) for line in text.splitlines()]

    def _watch_first_batch(self, data_set: Any) -> None:
        """In a worker: report before and after the first batch."""
        from torch.utils.data import _DatasetKind, get_worker_info

        create = _DatasetKind.create_fetcher

        def create_watched(*args: Any, **options: Any) -> Any:
            fetcher = create(*args, **options)
            fetch = fetcher.fetch

            def fetch_first(indices: Any) -> Any:
                fetcher.fetch = fetch
                started = _states(data_set)
                batch = fetch(indices)
                ended = _states(data_set)
                drawn = {name: state for name, state in started.items() if ended.get(name) != state}
                worker = get_worker_info()
                report = {"pass": self._pass, "worker": worker.id if worker else 0, "drawn": drawn}
                os.write(self._file, (json.dumps(report) + "\n").encode())
                return batch

            fetcher.fetch = fetch_first
            return fetcher

        _DatasetKind.create_fetcher = staticmethod(create_watched)  # type: ignore[method-assign]


def _states(data_set: Any) -> dict[str, int]:
    """Return the state of each generator that a data set may draw from, by name."""
    import torch

    states = {"random": random.getstate(), "torch": torch.get_rng_state().numpy().tobytes()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *position = numpy.random.get_state(legacy=True)
        states["numpy.random"] = (kind, keys.tobytes(), *position)
    for name, generator in _generators(data_set):
        states[name] = _state(generator)
    return {name: zlib.crc32(repr(state).encode()) for name, state in states.items()}


def _generators(data_set: Any) -> Iterator[tuple[str, Any]]:
    """Yield the generators that a data set keeps, with their paths in it."""
    todo, seen = [("dataset", data_set, 0)], set[int]()
    while todo and len(seen) < _MOST_OBJECTS:
        path, thing, depth = todo.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if _is_generator(thing):
            yield path, thing
        elif depth < _MOST_DEPTH:
            todo += [(f"{path}.{name}", part, depth + 1) for name, part in _parts(thing)]


def _parts(thing: Any) -> list[tuple[str, Any]]:
    if isinstance(thing, list | tuple):
        return [(str(number), part) for number, part in enumerate(thing[:16])]
    if isinstance(thing, dict):
        return [(str(name), part) for name, part in list(thing.items())[:16]]
    return list(getattr(thing, "__dict__", {}).items())[:64]


def _is_generator(thing: Any) -> bool:
    import torch

    kinds = {"Generator", "RandomState"}
    is_numpys = type(thing).__module__.startswith("numpy.random") and type(thing).__name__ in kinds
    return is_numpys or isinstance(thing, random.Random | torch.Generator)


def _state(generator: Any) -> Any:
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    state = generator.getstate() if isinstance(generator, random.Random) else generator.get_state()
    return (
        state.numpy().tobytes()
        if hasattr(state, "numpy")
        else [bytes(p) if hasattr(p, "tobytes") else p for p in state]
    )
