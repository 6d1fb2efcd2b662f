"""WHAT TO LAUNCH: choose how to lay a training job out over machines.

A search rehearses an unmodified script with many launch parameters, and ranks them:

    result = plan("train.py", "--tp", "{tp}", space={"tp": [1, 2, 4, 8]}, cluster="dgx-h100", nodes=2)
    result.best.command

The pipeline partitioner assigns layers to machines:

    chain = read_profile("profile.json")  # written by `sandtable profile`, or a graph.txt of PipeDream's profiler
    split = partition(chain, [Level(machines=8, bandwidth_bytes_per_s=1.25e9)])
    print(split.name, split.seconds_per_minibatch)     # 7-1 ...

`predict_profile` makes a profile for a GPU that you do not have.
"""

from sandtable.planner.chain import Chain, read_profile
from sandtable.planner.partition_table import partition_json, print_partition
from sandtable.planner.partitioner import Level, Partition, Stage, partition
from sandtable.planner.plan_table import plan_json, print_plan
from sandtable.planner.predicted_profile import predict_profile
from sandtable.planner.ranking import Plan
from sandtable.planner.search import SearchOptions, plan
from sandtable.planner.search_space import Knob, SearchSpace
from sandtable.planner.trial import Trial, TrialFigures

__all__ = [
    "Chain",
    "Knob",
    "Level",
    "Partition",
    "Plan",
    "SearchOptions",
    "SearchSpace",
    "Stage",
    "Trial",
    "TrialFigures",
    "partition",
    "partition_json",
    "plan",
    "plan_json",
    "predict_profile",
    "print_partition",
    "print_plan",
    "read_profile",
]
