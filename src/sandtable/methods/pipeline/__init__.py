"""Pipelines: a model cut into stages that sit on different ranks, after PipeDream and GPipe.

`trace` turns a model into a row of layers, `profile` times each of them, so that `sandtable.plan` can say where to cut,
`cut` makes the stage modules, and `Pipeline` trains them.
"""

from sandtable.methods.pipeline.cut import StageModule, TiedParameter, cut, tied_parameters
from sandtable.methods.pipeline.passes import Pass
from sandtable.methods.pipeline.pipeline import Pipeline
from sandtable.methods.pipeline.profile import profile
from sandtable.methods.pipeline.profile_file import LayerProfile, Profile
from sandtable.methods.pipeline.record import PipelineRecord
from sandtable.methods.pipeline.schedule import Flush, GPipe, Interleaved, PipeDream, PipeDream2BW, Schedule
from sandtable.methods.pipeline.trace import TracedModel, trace
from sandtable.methods.pipeline.traffic import Traffic

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
    "Profile",
    "Schedule",
    "StageModule",
    "TiedParameter",
    "TracedModel",
    "Traffic",
    "cut",
    "profile",
    "tied_parameters",
    "trace",
]
