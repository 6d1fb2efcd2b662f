"""The command template: where the value of each knob goes.

    template = CommandTemplate(words=("train.py", "--tp", "{tp}", "--dp", "{world // tp}"))
    template.fill({"tp": 4, "world": 32})     # ("train.py", "--tp", "4", "--dp", "8")

Braces hold a knob or an expression. What is no expression, such as the braces of JSON, stays as it is, and doubled
braces are single ones. A key of a file that the command names is set in a copy of that file, and the copy is named in
its place: `FileSetting("ds.json", "zero_optimization.stage", "{zero}")`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sandtable.errors import PlanError
from sandtable.planner.expression import Expression, Value
from sandtable.planner.settings_file import write_with_settings

__all__ = ["CommandTemplate", "FileSetting"]

_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


@dataclass(frozen=True)
class FileSetting:
    """A key of a JSON, YAML or TOML file, with dots between levels, and the template of its value."""

    file: str
    key: str
    value: str

    @classmethod
    def parse(cls, text: str) -> FileSetting:
        """Read `ds.json:zero_optimization.stage={zero}`."""
        target, equals, value = text.partition("=")
        file, colon, key = target.rpartition(":")
        if not (equals and colon and file and key):
            raise PlanError(
                f"a setting must be a file, a colon, a key, = and a value, but got '{text}'; "
                "for example ds.json:zero_optimization.stage={zero}"
            )
        return cls(file, key, value)


@dataclass(frozen=True)
class CommandTemplate:
    """A launch command, or a script with its arguments, with knobs in it."""

    words: tuple[str, ...]
    settings: tuple[FileSetting, ...] = ()

    def __post_init__(self) -> None:
        for setting in self.settings:
            if not any(_names_file(word, setting.file) for word in self.words):
                raise PlanError(
                    f"a file with settings must be named in the command, but {setting.file} is not; "
                    "name it as the command does"
                )
            if not Path(setting.file).is_file():
                raise PlanError(f"{setting.file} must be a file, but there is none; give the path of one")

    @cached_property
    def names(self) -> frozenset[str]:
        """The names in braces: knobs, and facts about the cluster."""
        texts = (*self.words, *(setting.value for setting in self.settings))
        return frozenset(name for text in texts for expression in _expressions(text) for name in expression.names)

    def fill(self, values: Mapping[str, Value], *, directory: Path | None = None) -> tuple[str, ...]:
        """Return the words with these values. Copies of files are written to `directory`, which must be given then."""
        words = tuple(_fill(word, values) for word in self.words)
        for file in dict.fromkeys(setting.file for setting in self.settings):
            assert directory is not None
            settings = {
                setting.key: _filled_value(setting.value, values) for setting in self.settings if setting.file == file
            }
            copy = write_with_settings(Path(file), settings, directory)
            words = tuple(_replace_file(word, file, str(copy)) for word in words)
        return words


def _expressions(text: str) -> Iterator[Expression]:
    for match in _BRACES.finditer(text):
        expression = _expression(match)
        if expression is not None:
            yield expression


def _expression(match: re.Match[str]) -> Expression | None:
    """Return the expression in braces, or None if these are no braces of ours."""
    if match[1] is None or not match[1].strip():
        return None
    try:
        expression = Expression(match[1])
    except PlanError:
        return None
    return expression if expression.names else None


def _fill(text: str, values: Mapping[str, Value]) -> str:
    def replacement(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        expression = _expression(match)
        return match[0] if expression is None else _text(expression.value(values))

    return _BRACES.sub(replacement, text)


def _filled_value(text: str, values: Mapping[str, Value]) -> Value:
    """Return the value of a key: with its own type if it is one expression, else text."""
    whole = re.fullmatch(r"\{([^{}]+)\}", text)
    if whole is not None:
        value: Value = Expression(whole[1]).value(values)
        return value
    return _fill(text, values)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _names_file(word: str, file: str) -> bool:
    return word == file or word.endswith("=" + file)


def _replace_file(word: str, file: str, copy: str) -> str:
    return word.removesuffix(file) + copy if _names_file(word, file) else word


def unused_knobs(template: CommandTemplate, knobs: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the knobs that nothing in the command depends on, and that are not among `others`."""
    return [knob for knob in knobs if knob not in template.names and knob not in others]
