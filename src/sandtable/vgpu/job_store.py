"""The job's store: keys and values that all ranks share, where torchrun would keep them.

Its shelf is with the launcher. Ranks that find each other here talk in ways of their own afterwards (sockets, files),
so nobody can speak for a rank that does not run: with the first word about the store all ranks are started.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

__all__ = ["Shelf", "offer_store"]

Ask = Callable[..., Any]
"""One request to the shelf: its name and arguments; gives the answer."""

_PAUSE_SECONDS = 0.05


class Shelf:
    """The launcher's side: what ranks put there."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def answer(self, request: str, *arguments: Any) -> Any:
        """Carry out one request. `take` gives None for a key that is not there."""
        match request, *arguments:
            case "put", key, value:
                self._values[key] = value
            case "take", key:
                return self._values.get(key)
            case "add", key, amount:
                total = int(self._values.get(key, b"0")) + amount
                self._values[key] = str(total).encode()
                return total
            case "replace", key, expected, value:
                if self._values.get(key, expected) == expected:
                    self._values[key] = value
                return self._values[key]
            case "drop", key:
                return self._values.pop(key, None) is not None
            case "count", *_:
                return len(self._values)
        return None


def offer_store(ask: Ask) -> None:
    """A `TCPStore` at the job's own address is the shelf, from now on; one elsewhere is what it always was."""
    import torch.distributed
    from torch._C import _distributed_c10d as c10d

    kind = _store_class(ask)
    original = c10d.TCPStore
    opened: list[Any] = []  # a store that only C++ knows of, inside another, would lose its Python half

    def open_store(host_name: str, port: int = 29500, *rest: Any, **options: Any) -> Any:
        here = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
        if (host_name, str(port)) != here:
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
            ask("put", key, _as_bytes(value))

        def get(self, key: str) -> bytes:
            self.wait([key])
            return bytes(ask("take", key))

        def check(self, keys: Sequence[str]) -> bool:
            return all(ask("take", key) is not None for key in keys)

        def add(self, key: str, amount: int) -> int:
            return int(ask("add", key, amount))

        def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
            return bytes(ask("replace", key, _as_bytes(expected), _as_bytes(desired)))

        def delete_key(self, key: str) -> bool:
            return bool(ask("drop", key))

        def num_keys(self) -> int:
            return int(ask("count"))

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
