"""WHICH METHOD SUITS THIS CLUSTER: the same training by several methods, on real data, measured side by side.

Think of a wind tunnel: one model after another is exposed to the same stream of air, and read by the same instruments.
Here the stream is a network of a given rate, and the instruments show accuracy, time and bytes on the wire.
"""

from typing import TYPE_CHECKING, Any

from sandtable.study.events import (
    EpochFinished,
    MethodAdvanced,
    MethodFinished,
    MethodStarted,
    StudyFinished,
    StudyStarted,
)
from sandtable.study.method import Method, default_methods
from sandtable.study.results import Epoch, StudyRun
from sandtable.study.settings import StudyNetwork, StudySettings, Training, load_settings

if TYPE_CHECKING:
    from sandtable.study.study import (
        ListedMethod,
        PreparedMethod,
        StudyInputs,
        StudyListing,
        StudyResult,
        list_study,
        prepare_study,
        run_study,
    )

__all__ = [
    "Epoch",
    "EpochFinished",
    "ListedMethod",
    "Method",
    "MethodAdvanced",
    "MethodFinished",
    "MethodStarted",
    "PreparedMethod",
    "StudyFinished",
    "StudyInputs",
    "StudyListing",
    "StudyNetwork",
    "StudyResult",
    "StudyRun",
    "StudySettings",
    "StudyStarted",
    "Training",
    "default_methods",
    "list_study",
    "load_settings",
    "prepare_study",
    "run_study",
]


def __getattr__(name: str) -> Any:
    """Load the functions of the command on first use: sixty workers import this package without needing them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sandtable.study import study

    return getattr(study, name)
