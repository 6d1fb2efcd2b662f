"""Methods in words: parsed as syntax, looked up by name, never executed."""

from dataclasses import dataclass
from types import ModuleType

import pytest

from sandtable.errors import StudyError
from sandtable.study.words import Word, parse


@dataclass
class Outer:
    inner: object
    rate: float = 0.5


@dataclass
class Inner:
    sizes: list[int]


@pytest.fixture
def module() -> ModuleType:
    made = ModuleType("methods")
    made.__dict__.update(Outer=Outer, Inner=Inner, hidden=print, __all__=["Inner", "Outer"])
    return made


def test_nested_words_become_objects(module: ModuleType) -> None:
    built = parse("Outer(Inner([1, 2]), rate=-0.25)").build(module)
    assert built == Outer(Inner([1, 2]), rate=-0.25)


def test_bare_name_is_a_call_without_arguments() -> None:
    assert parse("Gossip") == parse("Gossip()") == Word(name="Gossip")


@pytest.mark.parametrize("text", ["", "1", "a.b()", "f(x)", "f(**k)", "f(1)(2)", "f(lambda: 1)"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        parse(text)


def test_name_that_is_not_exported_is_refused(module: ModuleType) -> None:
    with pytest.raises(StudyError, match="but got hidden; there are"):
        parse("hidden(1)").build(module)


def test_wrong_arguments_are_one_message(module: ModuleType) -> None:
    with pytest.raises(StudyError, match="Outer must be given its own arguments"):
        parse("Outer()").build(module)


def test_arguments_of_the_wrong_kind_are_one_message() -> None:
    module = ModuleType("numbers")
    vars(module).update(__all__=["number"], number=float)
    with pytest.raises(StudyError, match="number must be given its own arguments"):
        parse("number('many')").build(module)
