"""What is sent: compressions, each a small setting that makes codecs of vectors."""

from sandtable.methods.compression.compression import Codec, Compression
from sandtable.methods.compression.feedback import ErrorFeedback
from sandtable.methods.compression.half import Half
from sandtable.methods.compression.momentum import MomentumCorrection
from sandtable.methods.compression.none import NoCompression
from sandtable.methods.compression.power_sgd import PowerSGD, PowerSGDReducer
from sandtable.methods.compression.qsgd import QSGD
from sandtable.methods.compression.random_k import RandomK
from sandtable.methods.compression.sign import Sign
from sandtable.methods.compression.threshold import Threshold
from sandtable.methods.compression.top_k import TopK

__all__ = [
    "QSGD",
    "Codec",
    "Compression",
    "ErrorFeedback",
    "Half",
    "MomentumCorrection",
    "NoCompression",
    "PowerSGD",
    "PowerSGDReducer",
    "RandomK",
    "Sign",
    "Threshold",
    "TopK",
]
