"""WHAT TO LAUNCH: choose how to lay a training job out over machines.

The pipeline partitioner assigns layers to machines:

    chain = read_profile("profile.json")  # written by `sandtable profile`, or a graph.txt of PipeDream's profiler
    split = partition(chain, [Level(machines=8, bandwidth_bytes_per_s=1.25e9)])
    print(split.name, split.seconds_per_minibatch)     # 7-1 ...

`predict_profile` makes a profile for a GPU that you do not have.
"""

from sandtable.plan.chain import Chain, read_profile
from sandtable.plan.partition_table import partition_json, print_partition
from sandtable.plan.partitioner import Level, Partition, Stage, partition
from sandtable.plan.predicted_profile import predict_profile

__all__ = [
    "Chain",
    "Level",
    "Partition",
    "Stage",
    "partition",
    "partition_json",
    "predict_profile",
    "print_partition",
    "read_profile",
]
