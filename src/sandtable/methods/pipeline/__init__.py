"""PIPELINES: a model cut into stages on different ranks, after PipeDream and GPipe.

    stages = cut(model, example_inputs, boundaries=[4, "classifier"])
    pipeline = Pipeline(stages, lambda parameters: torch.optim.SGD(parameters, lr=0.1), loss=nn.CrossEntropyLoss())
    for inputs, targets in loader:
        loss = pipeline.step(inputs, targets)
    pipeline.close()

`trace` turns a model into a chain of layers and `profile` times each of them, so that
`sandtable.planner.partitioner` can choose where to cut; `cut` makes the stage modules, and `Pipeline` trains them
under one of the schedules.
"""

from sandtable.methods.pipeline.cut import StageModule, TiedParameter, cut, tied_parameters
from sandtable.methods.pipeline.layout import StageLayout
from sandtable.methods.pipeline.messages import PipelineTraffic
from sandtable.methods.pipeline.picture import Pass
from sandtable.methods.pipeline.pipeline import Pipeline
from sandtable.methods.pipeline.profile import profile
from sandtable.methods.pipeline.profile_request import make_input, measure_profile
from sandtable.methods.pipeline.record import PipelineRecord
from sandtable.methods.pipeline.schedule import Flush, GPipe, Interleaved, PipeDream, PipeDream2BW, Schedule
from sandtable.methods.pipeline.trace import TracedModel, trace
from sandtable.pipeline_profile import LayerProfile, Profile, ProfileRequest

__all__ = [
    "Flush",
    "GPipe",
    "Interleaved",
    "LayerProfile",
    "Pass",
    "PipeDream",
    "PipeDream2BW",
    "Pipeline",
    "PipelineRecord",
    "PipelineTraffic",
    "Profile",
    "ProfileRequest",
    "Schedule",
    "StageLayout",
    "StageModule",
    "TiedParameter",
    "TracedModel",
    "cut",
    "make_input",
    "measure_profile",
    "profile",
    "tied_parameters",
    "trace",
]
