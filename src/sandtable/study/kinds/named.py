"""The kinds that a settings file may name: `kind = "Downpour(n_push=5, n_fetch=5)"`."""

from sandtable.study.kinds.downpour import Downpour
from sandtable.study.kinds.one_machine import OneMachine
from sandtable.study.kinds.pipedream import PipeDream
from sandtable.study.kinds.sandblaster import Sandblaster

__all__ = ["Downpour", "OneMachine", "PipeDream", "Sandblaster"]
