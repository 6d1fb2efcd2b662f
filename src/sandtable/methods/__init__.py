"""REAL TRAINING: methods that communicate less, over torch.distributed, with any model and optimizer.

Three choices make a method: *when* ranks exchange (`sync`), *with whom* (`exchange`) and *what* is sent
(`compression`). `DataParallel(model, optimizer, sync=..., exchange=..., compression=...)` puts them together; the
loop stays yours.
"""

from sandtable.methods.compression import (
    QSGD,
    Codec,
    Compression,
    Half,
    NoCompression,
    PowerSGD,
    RandomK,
    Sign,
    Threshold,
    TopK,
)
from sandtable.methods.data_parallel import DataParallel
from sandtable.methods.exchange import AllReduce, Exchange, Gossip, Hierarchical
from sandtable.methods.explain import Explanation
from sandtable.methods.measurement import Measurement
from sandtable.methods.record import Record
from sandtable.methods.sync import (
    BulkSynchronous,
    Consensus,
    DiLoCo,
    LocalSGD,
    Nesterov,
    NoLoCo,
    PostLocalSGD,
    SlowMo,
    SparseLoCo,
    Sync,
)
from sandtable.methods.warm_up import WarmUp

__all__ = [
    "QSGD",
    "AllReduce",
    "BulkSynchronous",
    "Codec",
    "Compression",
    "Consensus",
    "DataParallel",
    "DiLoCo",
    "Exchange",
    "Explanation",
    "Gossip",
    "Half",
    "Hierarchical",
    "LocalSGD",
    "Measurement",
    "Nesterov",
    "NoCompression",
    "NoLoCo",
    "PostLocalSGD",
    "PowerSGD",
    "RandomK",
    "Record",
    "Sign",
    "SlowMo",
    "SparseLoCo",
    "Sync",
    "Threshold",
    "TopK",
    "WarmUp",
]
