"""WHAT IS SENT: a vector as fewer bytes."""

from sandtable.methods.compression.compression import Codec, Compression, NoCompression

__all__ = ["Codec", "Compression", "NoCompression"]
