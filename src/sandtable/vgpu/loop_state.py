"""Loop state: where in its loops a rank was when it stopped, so that ranks which left a loop earlier can be told.

Noted are the data loaders that the script iterates over, how many batches each gave and whether it came to its end, and
the lines of the script on the stack when the capture was stopped.
"""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Any

from sandtable.vgpu.failures import is_library, script_place
from sandtable.vgpu.protocol import LoaderState
from sandtable.vgpu.stop import StopCapture

__all__ = ["BatchCounter", "stack_of"]

_MOST_LOADERS = 32
_MOST_FRAMES = 32


class BatchCounter:
    """Counts the batches of torch's data loaders."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, int], list[Any]] = {}
        self._num_epochs: dict[tuple[str, int], int] = {}
        self.max_epochs = 0
        """Stop before a loader begins once more than this; 0 for no limit."""

    @property
    def states(self) -> tuple[LoaderState, ...]:
        """The last iteration on each line, in the order in which they began."""
        return tuple(LoaderState(*place, *state) for place, state in self._states.items())

    def install(self) -> None:
        """Watch all loaders of this process."""
        from torch.utils.data import DataLoader
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        begin, advance = DataLoader.__iter__, _BaseDataLoaderIter.__next__

        @functools.wraps(begin)
        def iterate(loader: Any) -> Any:
            place = script_place()
            number = self._num_epochs[place] = self._num_epochs.get(place, 0) + 1
            if 0 < self.max_epochs < number:
                raise StopCapture("steps")
            iterator: Any = begin(loader)
            self._states.pop(place, None)
            if len(self._states) < _MOST_LOADERS:
                iterator._sandtable_state = self._states[place] = [0, False]
            return iterator

        @functools.wraps(advance)
        def next_batch(iterator: Any) -> Any:
            state = getattr(iterator, "_sandtable_state", None)
            try:
                batch = advance(iterator)
            except StopIteration:
                if state is not None:
                    state[1] = True
                raise
            if state is not None:
                state[0] += 1
            return batch

        DataLoader.__iter__ = iterate  # type: ignore[method-assign]
        _BaseDataLoaderIter.__next__ = next_batch  # type: ignore[method-assign,assignment]


def stack_of(error: BaseException | None) -> tuple[tuple[str, int], ...]:
    """Return the lines of the script through which an exception passed, outermost first."""
    places: list[tuple[str, int]] = []
    frame: TracebackType | None = error.__traceback__ if error is not None else None
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if not is_library(file):
            places.append((file, frame.tb_lineno))
        frame = frame.tb_next
    return tuple(places[-_MOST_FRAMES:])
