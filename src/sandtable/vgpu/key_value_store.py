"""The job's key-value store, which all ranks share and torchrun would keep.

The launcher holds it. Ranks that find each other here then talk in their own ways (sockets, files), so no rank
can stand in for one that does not run: the first request starts all ranks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from sandtable.vgpu.protocol import StoreOperation

__all__ = ["KeyValueStore", "offer_store"]

Ask = Callable[..., Any]
"""Sends one request to the store, an operation and its arguments, and returns the answer."""

_PAUSE_SECONDS = 0.05


class KeyValueStore:
    """The launcher's side: the keys and values."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._operations: dict[int, Callable[..., Any]] = {
            StoreOperation.SET: self.set,
            StoreOperation.GET: self.get,
            StoreOperation.ADD: self.add,
            StoreOperation.COMPARE_SET: self.compare_set,
            StoreOperation.DELETE: self.delete,
            StoreOperation.COUNT: self.count,
        }

    def carry_out(self, operation: int, arguments: Sequence[Any]) -> Any:
        """Carry out one request of a rank."""
        return self._operations[operation](*arguments)

    def set(self, key: str, value: bytes) -> None:
        """Set a key."""
        self._values[key] = value

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, or None if it is not set."""
        return self._values.get(key)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which starts at 0, and return the sum."""
        total = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Set a key if its value is the expected one or if it is not set; return its value."""
        if self._values.get(key, expected) == expected:
            self._values[key] = desired
        return self._values[key]

    def delete(self, key: str) -> bool:
        """Delete a key; return whether it was set."""
        return self._values.pop(key, None) is not None

    def count(self) -> int:
        """Return the number of keys."""
        return len(self._values)


def offer_store(ask: Ask, *, is_rank: Callable[[], bool]) -> None:
    """Make a rank's `TCPStore` at the job's own address the launcher's store; any other stays what it was."""
    import torch.distributed
    from torch._C import _distributed_c10d as c10d

    kind = _store_class(ask)
    original = c10d.TCPStore
    opened: list[Any] = []  # a store that only C++ knows of, inside another, would lose its Python half

    def open_store(host_name: str, port: int = 29500, *rest: Any, **options: Any) -> Any:
        here = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
        if (host_name, str(port)) != here or not is_rank():
            return original(host_name, port, *rest, **options)
        opened.append(kind(options.get("timeout", timedelta(seconds=300))))
        return opened[-1]

    for module in (c10d, torch.distributed):
        module.TCPStore = open_store  # type: ignore[attr-defined]


def _store_class(ask: Ask) -> Any:
    from torch._C._distributed_c10d import Store
    from torch.distributed import DistStoreError

    class JobStore(Store):
        """A rank's side."""

        def __init__(self, timeout: timedelta) -> None:
            super().__init__()
            self._patience = timeout

        @property
        def timeout(self) -> timedelta:
            return self._patience

        def set_timeout(self, timeout: timedelta) -> None:
            self._patience = timeout

        def set(self, key: str, value: str | bytes) -> None:
            ask(StoreOperation.SET, key, _as_bytes(value))

        def get(self, key: str) -> bytes:
            self.wait([key])
            return bytes(ask(StoreOperation.GET, key))

        def check(self, keys: Sequence[str]) -> bool:
            return all(ask(StoreOperation.GET, key) is not None for key in keys)

        def add(self, key: str, amount: int) -> int:
            return int(ask(StoreOperation.ADD, key, amount))

        def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
            return bytes(ask(StoreOperation.COMPARE_SET, key, _as_bytes(expected), _as_bytes(desired)))

        def delete_key(self, key: str) -> bool:
            return bool(ask(StoreOperation.DELETE, key))

        def num_keys(self) -> int:
            return int(ask(StoreOperation.COUNT))

        def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
            seconds = (timeout or self._patience).total_seconds()
            deadline = time.monotonic() + seconds
            while not self.check(keys):
                if time.monotonic() > deadline:
                    raise DistStoreError(
                        f"keys of the store must be set within {seconds:g} s, but one of {keys} is not"
                    )
                time.sleep(_PAUSE_SECONDS)

    return JobStore


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
