"""WHEN: at which steps ranks exchange, and whether gradients or weights."""

from sandtable.methods.sync.asynchronous import Asynchronous
from sandtable.methods.sync.bulk import BulkSynchronous
from sandtable.methods.sync.local_sgd import LocalSGD
from sandtable.methods.sync.named import DiLoCo, NoLoCo, SparseLoCo
from sandtable.methods.sync.outer import Consensus, Nesterov, Outer, SlowMo
from sandtable.methods.sync.post_local import PostLocalSGD
from sandtable.methods.sync.stale import StaleSynchronous
from sandtable.methods.sync.sync import Driver, Setup, Sync

__all__ = [
    "Asynchronous",
    "BulkSynchronous",
    "Consensus",
    "DiLoCo",
    "Driver",
    "LocalSGD",
    "Nesterov",
    "NoLoCo",
    "Outer",
    "PostLocalSGD",
    "Setup",
    "SlowMo",
    "SparseLoCo",
    "StaleSynchronous",
    "Sync",
]
