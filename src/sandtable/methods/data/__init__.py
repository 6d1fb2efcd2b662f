"""DATA PARALLELISM: every rank trains its own replica of the model, and replicas communicate as little as possible.

Three choices make a method: *when* ranks exchange (`sync`), *with whom* (`exchange`) and *what* is sent
(`compression`). `DataParallel` puts them together, with any model and optimizer; the loop stays yours.
`compress_sharded` compresses what FSDP2 sends, `ReplicaCheckpoints` saves replicas that differ.

    parallel = DataParallel(model, optimizer, sync=LocalSGD(16), exchange=Gossip(), compression=TopK(0.01))
    for inputs, targets in loader:
        criterion(model(inputs), targets).backward()
        parallel.step()
    parallel.synchronize()
"""

import importlib
from typing import TYPE_CHECKING, Any

from sandtable.methods.data.combinations import check_combination
from sandtable.methods.data.compression.compression import Codec, Compression
from sandtable.methods.data.compression.feedback import ErrorFeedback
from sandtable.methods.data.compression.half import Half
from sandtable.methods.data.compression.momentum import MomentumCorrection
from sandtable.methods.data.compression.none import NoCompression
from sandtable.methods.data.compression.power_sgd import PowerSGD, PowerSGDReducer
from sandtable.methods.data.compression.qsgd import QSGD
from sandtable.methods.data.compression.random_k import RandomK
from sandtable.methods.data.compression.sign import Sign
from sandtable.methods.data.compression.threshold import Threshold
from sandtable.methods.data.compression.top_k import TopK
from sandtable.methods.data.data_parallel import DataParallel
from sandtable.methods.data.exchange.all_reduce import AllReduce
from sandtable.methods.data.exchange.exchange import Exchange, ExchangeCost, Mixer, VectorSpec
from sandtable.methods.data.exchange.gossip import Gossip
from sandtable.methods.data.exchange.hierarchical import Hierarchical
from sandtable.methods.data.explanation import Explanation
from sandtable.methods.data.measurement import Measurement
from sandtable.methods.data.record import Record
from sandtable.methods.data.sync.bulk import BulkSynchronous
from sandtable.methods.data.sync.local_sgd import LocalSGD
from sandtable.methods.data.sync.outer import Consensus, Nesterov, Outer, SlowMo
from sandtable.methods.data.sync.post_local import PostLocalSGD
from sandtable.methods.data.sync.presets import DiLoCo, NoLoCo, SparseLoCo
from sandtable.methods.data.sync.sync import Sync, SyncDriver, SyncSetup
from sandtable.methods.data.warm_up import WarmUp

if TYPE_CHECKING:
    from sandtable.methods.data.replica_checkpoints import ReplicaCheckpoints, Stateful
    from sandtable.methods.data.sharded import Sharded, compress_sharded

__all__ = [
    "QSGD",
    "AllReduce",
    "BulkSynchronous",
    "Codec",
    "Compression",
    "Consensus",
    "DataParallel",
    "DiLoCo",
    "ErrorFeedback",
    "Exchange",
    "ExchangeCost",
    "Explanation",
    "Gossip",
    "Half",
    "Hierarchical",
    "LocalSGD",
    "Measurement",
    "Mixer",
    "MomentumCorrection",
    "Nesterov",
    "NoCompression",
    "NoLoCo",
    "Outer",
    "PostLocalSGD",
    "PowerSGD",
    "PowerSGDReducer",
    "RandomK",
    "Record",
    "ReplicaCheckpoints",
    "Sharded",
    "Sign",
    "SlowMo",
    "SparseLoCo",
    "Stateful",
    "Sync",
    "SyncDriver",
    "SyncSetup",
    "Threshold",
    "TopK",
    "VectorSpec",
    "WarmUp",
    "check_combination",
    "compress_sharded",
]

# They import FSDP2 and torch.distributed.checkpoint, which takes half a second that other methods do not need.
_LAZY = {
    "ReplicaCheckpoints": "replica_checkpoints",
    "Sharded": "sharded",
    "Stateful": "replica_checkpoints",
    "compress_sharded": "sharded",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
