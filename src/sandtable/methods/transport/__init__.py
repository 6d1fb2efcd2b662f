"""TENSORS BETWEEN RANKS: process groups that count bytes, flat vectors, buckets, and the buffers of a model."""
