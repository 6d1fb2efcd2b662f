"""plan: what to launch.

The pipeline partitioner is here: which layers go on which machines.

    chain = read_profile("profile.json")  # of `sandtable profile`, or a graph.txt of PipeDream's profiler
    found = partition(chain, [Level(machines=8, bandwidth_bytes_per_s=1.25e9)])
    print(found.name, found.seconds_per_minibatch)     # 7-1 ...
"""

from sandtable.plan.captured import predicted
from sandtable.plan.chain import Chain, Layer
from sandtable.plan.partition import Level, Partition, Stage, partition
from sandtable.plan.profile_file import read_profile

__all__ = ["Chain", "Layer", "Level", "Partition", "Stage", "partition", "predicted", "read_profile"]
