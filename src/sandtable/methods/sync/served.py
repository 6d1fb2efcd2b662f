"""Syncs that need a place where the weights are: a parameter server."""

from sandtable.methods.sync.sync import Driver, Setup, Sync

__all__ = ["ServedSync"]


class ServedSync(Sync):
    """Ranks go at their own pace, so they exchange with servers (`ServerDriver`) and never with each other."""

    def driver(self, setup: Setup) -> Driver:
        raise AssertionError(f"{self} without a server is refused by the rules")
