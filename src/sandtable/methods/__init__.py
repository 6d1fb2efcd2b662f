"""REAL TRAINING: methods that communicate less, over torch.distributed, with any model and optimizer.

Three choices make a method: *when* ranks exchange (`sync`), *with whom* (`exchange`) and *what* is sent
(`compression`). `DataParallel(model, optimizer, sync=..., exchange=..., compression=...)` puts them together; the
loop stays yours. `TensorParallel(model)` splits the layers of a model that is too large for one rank.
"""

from sandtable.methods.compression import (
    QSGD,
    Codec,
    Compression,
    Half,
    MomentumCorrection,
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
from sandtable.methods.rules import check_combination
from sandtable.methods.server import Checkpoints, ParameterServer, ServerClient, ServerReport, serve
from sandtable.methods.sync import (
    Asynchronous,
    BulkSynchronous,
    Consensus,
    DiLoCo,
    LocalSGD,
    Nesterov,
    NoLoCo,
    PostLocalSGD,
    SlowMo,
    SparseLoCo,
    StaleSynchronous,
    Sync,
)
from sandtable.methods.tensor import TensorParallel
from sandtable.methods.warm_up import WarmUp

__all__ = [
    "QSGD",
    "AllReduce",
    "Asynchronous",
    "BulkSynchronous",
    "Checkpoints",
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
    "MomentumCorrection",
    "Nesterov",
    "NoCompression",
    "NoLoCo",
    "ParameterServer",
    "PostLocalSGD",
    "PowerSGD",
    "RandomK",
    "Record",
    "ServerClient",
    "ServerReport",
    "Sign",
    "SlowMo",
    "SparseLoCo",
    "StaleSynchronous",
    "Sync",
    "TensorParallel",
    "Threshold",
    "TopK",
    "WarmUp",
    "check_combination",
    "serve",
]
