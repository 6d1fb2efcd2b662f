"""The tests of the structure find what they look for."""

import ast
from pathlib import Path

import pytest
from tests.structure import test_functions, test_imports
from tests.structure.source import Module, words_of


@pytest.mark.parametrize(
    ("identifier", "words"),
    [
        ("_tell", ["tell"]),
        ("GroupBook", ["group", "book"]),
        ("HTTPKeeper", ["http", "keeper"]),
        ("num_tells2", ["num", "tells2"]),
        ("bookkeeping", ["bookkeeping"]),
    ],
)
def test_identifiers_split_into_words(identifier: str, words: list[str]) -> None:
    assert words_of(identifier) == words


def test_cycles_and_chains_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = {"a": {"b": 1}, "b": {"c": 1}, "c": {}, "d": {"e": 1, "a": 2}, "e": {"d": 1}}
    monkeypatch.setattr(test_imports, "imports", lambda: graph)
    assert test_imports._cycles() == [["d", "e", "d"]] or test_imports._cycles() == [["e", "d", "e"]]
    assert test_imports._longest_chain("a", {}) == ["a", "b", "c"]


def test_a_constructor_may_have_many_documented_options() -> None:
    options = ", ".join(f"option{index}=0" for index in range(9))
    text = " ".join(f"option{index}" for index in range(9))
    assert _excuse(f"class A:\n  '''{text}'''\n  def __init__(self, *, {options}): ...") is None
    assert "positional" in (_excuse(f"class A:\n  '''{text}'''\n  def __init__(self, {options}): ...") or "")
    assert "explain option0" in (_excuse(f"class A:\n  def __init__(self, *, {options}): ...") or "")
    assert _excuse(f"class A:\n  '''{text}'''\n  def run(self, *, {options}): ...") == ""


def _excuse(text: str) -> str | None:
    module = Module("made_up", Path("made_up.py"))
    module.__dict__["tree"] = ast.parse(text)
    ((function, owner),) = module.functions()
    return test_functions._excuse(function, owner)
