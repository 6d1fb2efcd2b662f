"""REAL TRAINING: methods that communicate less, over torch.distributed, with any model and optimizer.

Four doors, each with its complete public API; nothing behind them is imported from outside:

- `sandtable.methods.data`: replicas that exchange seldom, with few others, or compressed (`DataParallel`, ...)
- `sandtable.methods.tensor`: every layer split over ranks (`TensorParallel`, ...)
- `sandtable.methods.pipeline`: the layers of a model in stages on different ranks (`Pipeline`, ...)
- `sandtable.methods.server`: parameter servers, Downpour SGD and Sandblaster L-BFGS (`ParameterServer`, `serve`, ...)

`sandtable.methods.transport` is what they share: process groups that count, flat vectors, buckets, buffers.
"""
