"""The store: the key-value store that a rank gets from the rendezvous. Keys stay with the rank that set them."""

from __future__ import annotations

from typing import Any

from sandtable.errors import LaunchError

__all__ = ["make_store"]


def make_store() -> Any:
    """A store of this process; asking it for a key that only another rank sets fails at once, where it would wait."""
    from torch._C._distributed_c10d import Store

    class RankStore(Store):
        """Keys and values of one rank."""

        def __init__(self) -> None:
            super().__init__()
            self._values: dict[str, bytes] = {}

        def set(self, key: str, value: str | bytes) -> None:
            self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

        def get(self, key: str) -> bytes:
            self._require(key)
            return self._values[key]

        def add(self, key: str, amount: int) -> int:
            total = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(total).encode()
            return total

        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            if self._values.get(key, b"").decode() == expected:
                self.set(key, desired)
            return self._values.get(key, expected.encode())

        def check(self, keys: list[str]) -> bool:
            return all(key in self._values for key in keys)

        def wait(self, keys: list[str], *_: object) -> None:
            for key in keys:
                self._require(key)

        def delete_key(self, key: str) -> bool:
            return self._values.pop(key, None) is not None

        def num_keys(self) -> int:
            return len(self._values)

        def _require(self, key: str) -> None:
            if key not in self._values:
                raise LaunchError(
                    f"in a rehearsal the rendezvous store holds a rank's own keys only, but '{key}' was not set on this "
                    "rank; exchange values between ranks with collectives (broadcast_object_list, all_gather_object)"
                )

    return RankStore()
