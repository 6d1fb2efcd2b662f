"""Draws: a random key for each message, from a seed and the number of messages so far."""

__all__ = ["Draws"]

_MASK = 2**64 - 1


class Draws:
    """The same seed and count give the same keys; only the count has to be saved."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.count = 0

    def next_key(self) -> int:
        """Return 64 bits, mixed (splitmix64) so that neighbouring seeds and counts have nothing in common."""
        key = _mix((_mix(self.seed & _MASK) + self.count) & _MASK)
        self.count += 1
        return key


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)
