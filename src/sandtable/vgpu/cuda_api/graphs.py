"""CUDA graphs: a capture takes the operators that it issues off the records, and each replay puts them there again.

On a card nothing runs during a capture, and a replay is one launch of all its kernels. So replayed operators cost the
host nothing (`LaunchKind.GRAPH`), collectives among them are calls again, and a step that ends inside a graph ends at
each replay. Memory made during a capture belongs to the graph's own pool, which keeps what is freed. Small values stay
what the capture computed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import ModuleType
from typing import Any

__all__ = ["follow_updates", "names"]

PoolId = tuple[int, int]


class _Updates:
    """Whom replays tell which updates of parameters they repeat."""

    def __init__(self) -> None:
        self.on_update: Callable[[int], None] = lambda updater: None


_updates = _Updates()


def follow_updates(on_update: Callable[[int], None]) -> None:
    """Call the function with the number of the updater when a replay has updated parameters."""
    _updates.on_update = on_update


class AllocatorState:
    """What a CUDA build restores memory from when a graph is replayed; only its name is needed."""


class _GraphState:
    """A graph as torch sees it: its pool, whether it can be replayed, and requests that change nothing here."""

    _pool: PoolId | None
    _number: int | None

    @property
    def _has_graph_exec(self) -> bool:
        """Return whether the graph can be replayed, before which newer releases would instantiate it."""
        return self._number is not None

    def pool(self) -> PoolId:
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def pools(self) -> list[PoolId]:
        return [self.pool()]

    def capture_end_post(self) -> None:
        """Accept the second half of the end, which newer releases call by itself: no template is kept."""

    def instantiate(self) -> None:
        """Accept the request: nothing is compiled."""

    def _retain_pool(self, pool: PoolId) -> None:
        """Accept the request: pools live as long as their memory."""

    def register_generator_state(self, generator: Any) -> None:
        """Accept a generator: random numbers do not depend on graphs here."""

    def enable_debug_mode(self) -> None:
        """Accept the request."""

    def debug_dump(self, debug_path: str) -> None:
        """Write nothing: there is no graph of the card's."""


def names(core: ModuleType) -> dict[str, Any]:
    """Return the names of ``torch._C`` that belong to CUDA graphs."""
    pools = count(1)
    return {
        "_CUDAGraph": _graph_class(core, pools),
        "_cuda_CUDAAllocator_AllocatorState": AllocatorState,
        "_graph_pool_handle": lambda: (0, next(pools) << 32),
        "_cuda_isCurrentStreamCapturing": core.is_capturing,
    }


def _graph_class(core: ModuleType, pools: count[int]) -> type:
    class CUDAGraph(_GraphState):
        """What ``torch.cuda.CUDAGraph`` derives from."""

        def __new__(cls, keep_graph: bool = False) -> CUDAGraph:
            graph = super().__new__(cls)
            graph._pool = None
            graph._number = None
            return graph

        def capture_begin(self, pool: PoolId | None = None, capture_error_mode: str = "global") -> None:
            if core.is_capturing():
                raise RuntimeError("CUDA error: a stream must not capture two graphs at a time; end the first capture")
            self._release()
            self._pool = (next(pools), 0) if pool is None else (int(pool[0]), int(pool[1]))
            self._device = core.current_device()
            core.share_pool(self._device, self._pool)
            core.begin_pool(self._device, self._pool)
            core.begin_graph()

        def capture_end(self) -> None:
            self.capture_end_pre()
            self.capture_end_post()

        def capture_end_pre(self) -> None:
            if not core.is_capturing():
                raise RuntimeError("capture_end must follow capture_begin, but nothing is being captured")
            self._number = core.end_graph()
            core.end_pool(self._device, self._pool)

        def replay(self) -> None:
            if self._number is None:
                raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
            for updater in core.replay_graph(self._number):
                _updates.on_update(updater)

        def reset(self) -> None:
            self._release()

        def _release(self) -> None:
            if self._pool is not None:
                core.leave_pool(self._device, self._pool)
            self._pool = self._number = None

    return CUDAGraph
