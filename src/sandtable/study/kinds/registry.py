"""Find the kind of a method: the one it names, or `DataParallelKind` with its three axes."""

import importlib
from types import ModuleType
from typing import Any

from sandtable.errors import StudyError
from sandtable.study.expressions import parse_call
from sandtable.study.kinds.data_parallel import DataParallelKind
from sandtable.study.kinds.trainer import MethodKind
from sandtable.study.method import Method
from sandtable.study.settings import StudySettings
from sandtable.study.store import METHODS

__all__ = ["check_method", "kind_of", "load_methods"]

_RATE_KEYS = ("learning_rate", "momentum", "warm_up_epochs")


def load_methods(name: str) -> ModuleType:
    """Import the module whose classes the settings name: `kinds/axes.py`, or a stand-in for it."""
    if name == METHODS:
        from sandtable.study.kinds import axes  # loads every method: a stand-in needs none of them

        return axes
    return importlib.import_module(name)


def kind_of(method: Method, methods: ModuleType) -> MethodKind:
    """Build the method's kind; the axes of data parallelism are classes of `methods`."""
    if method.kind is None:
        classes = {name: getattr(methods, name) for name in methods.__all__}
        return DataParallelKind(methods=methods, **method.axes(classes))
    kind = parse_call(method.kind).build(_named_kinds(), rule="a kind must be one that sandtable study knows")
    assert isinstance(kind, MethodKind)
    return kind


def check_method(method: Method, methods: ModuleType, settings: StudySettings) -> None:
    """Raise StudyError if the method cannot work in this study."""
    kind = kind_of(method, methods)
    try:
        kind.check(settings)
    except TypeError as error:
        raise StudyError(
            f"{method.expression} must have arguments of the right types, but: {error}; see its docs"
        ) from None
    for key in _RATE_KEYS:
        if not kind.has_rate and (value := getattr(method, key)) is not None:
            raise StudyError(
                f"{key} must be left out where there is no learning rate ({method.kind}), but got {value}; remove it"
            )


def _named_kinds() -> dict[str, Any]:
    """Return the kinds that a settings file may name: `kind = "Downpour(n_push=5, n_fetch=5)"`."""
    # Imported here: a worker of a data-parallel method loads none of them.
    from sandtable.study.kinds.downpour import DownpourKind
    from sandtable.study.kinds.one_machine import OneMachineKind
    from sandtable.study.kinds.pipedream import PipeDreamKind
    from sandtable.study.kinds.sandblaster import SandblasterKind

    return {
        "Downpour": DownpourKind,
        "OneMachine": OneMachineKind,
        "PipeDream": PipeDreamKind,
        "Sandblaster": SandblasterKind,
    }
