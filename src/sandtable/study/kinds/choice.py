"""Which kind a method is: the one it names, or `DataParallel` with its three axes."""

import importlib
from types import ModuleType

from sandtable.errors import StudyError
from sandtable.study.kinds.data_parallel import DataParallel
from sandtable.study.kinds.kind import Kind
from sandtable.study.method import Method
from sandtable.study.settings import StudySettings
from sandtable.study.words import parse

__all__ = ["check_method", "kind_of"]

_OF_A_RATE = ("learning_rate", "momentum", "warm_up_epochs")


def kind_of(method: Method, methods: ModuleType) -> Kind:
    """`methods` is where the axes of `DataParallel` are looked up."""
    if method.kind is None:
        return DataParallel(methods=methods, axes=method.axes(methods))
    named = importlib.import_module("sandtable.study.kinds.named")  # a worker that needs none of them has none
    kind = parse(method.kind).build(named, rule="a kind must be one that sandtable study knows")
    assert isinstance(kind, Kind)
    return kind


def check_method(method: Method, methods: ModuleType, settings: StudySettings) -> None:
    """Refuse a method that cannot work in such a study."""
    kind = kind_of(method, methods)
    try:
        kind.check(settings)
    except TypeError as error:
        raise StudyError(f"{method.words} must have arguments of the right types, but: {error}; see its docs") from None
    for key in _OF_A_RATE:
        if not kind.has_rate and (value := getattr(method, key)) is not None:
            raise StudyError(
                f"{key} must be left out of a method that goes by no learning rate ({method.kind}), but got {value}; "
                "take it away"
            )
