"""Method expressions: parsed as syntax, looked up by name, never executed."""

from dataclasses import dataclass

import pytest

from sandtable.errors import StudyError
from sandtable.study.expressions import CallExpression, parse_call


@dataclass
class Outer:
    inner: object
    rate: float = 0.5


@dataclass
class Inner:
    sizes: list[int]


CLASSES = {"Outer": Outer, "Inner": Inner}


def test_nested_words_become_objects() -> None:
    built = parse_call("Outer(Inner([1, 2]), rate=-0.25)").build(CLASSES)
    assert built == Outer(Inner([1, 2]), rate=-0.25)


def test_bare_name_is_a_call_without_arguments() -> None:
    assert parse_call("Gossip") == parse_call("Gossip()") == CallExpression(name="Gossip")


@pytest.mark.parametrize("text", ["", "1", "a.b()", "f(x)", "f(**k)", "f(1)(2)", "f(lambda: 1)"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        parse_call(text)


def test_name_that_is_not_known_is_refused() -> None:
    with pytest.raises(StudyError, match="but got hidden; choose one of"):
        parse_call("hidden(1)").build(CLASSES)


def test_wrong_arguments_are_one_message() -> None:
    with pytest.raises(StudyError, match="Outer must be given its own arguments"):
        parse_call("Outer()").build(CLASSES)


def test_arguments_of_the_wrong_kind_are_one_message() -> None:
    with pytest.raises(StudyError, match="number must be given its own arguments"):
        parse_call("number('many')").build({"number": float})
