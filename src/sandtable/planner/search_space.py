"""The search space: knobs with the values to try, and conditions that a configuration must meet.

    space = SearchSpace(knobs=(Knob("tp", (1, 2, 4, 8)), Knob("pp", (1, 2, 4))), conditions=("tp * pp <= 16",))
    for configuration in space.configurations({"world": 16}): ...

A knob has only a name here. Where its value goes (a flag, a variable, a key of a file, the cluster) is the business of
the command template.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from sandtable.errors import PlanError
from sandtable.planner.expression import Expression, Value

__all__ = ["CLUSTER_KNOBS", "Configuration", "Knob", "SearchSpace"]

CLUSTER_KNOBS = ("nodes", "cluster")
"""Knobs of sandtable's own, which need not appear in the command."""


@dataclass(frozen=True)
class Knob:
    """Something that can be set, and the values to try."""

    name: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise PlanError(f"a knob must have a name like a variable's, but got '{self.name}'; for example tp=1,2,4")
        if not self.values:
            raise PlanError(f"knob {self.name} must have values to try, but has none; for example {self.name}=1,2,4")
        if len(set(map(repr, self.values))) < len(self.values):
            given = ",".join(map(str, self.values))
            raise PlanError(f"the values of knob {self.name} must differ, but got {given}; leave out the repetitions")

    @classmethod
    def parse(cls, text: str) -> Knob:
        """Read `tp=1,2,4,8`, or a range of whole numbers `tp=1..8`."""
        name, equals, values = text.partition("=")
        if not equals:
            raise PlanError(f"a knob must be a name, = and values, but got '{text}'; for example tp=1,2,4,8")
        low, dots, high = values.partition("..")
        if dots and low.strip().isdigit() and high.strip().isdigit():
            return cls(name.strip(), tuple(range(int(low), int(high) + 1)))
        return cls(name.strip(), tuple(_value(part.strip()) for part in values.split(",") if part.strip()))


@dataclass(frozen=True)
class Configuration:
    """One value for every knob, in the order of the knobs."""

    values: tuple[tuple[str, Value], ...]

    def to_dict(self) -> dict[str, Value]:
        """Return the value of each knob."""
        return dict(self.values)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values)


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """Knobs, and conditions over them, as text. Conditions may also use what `configurations` is given."""

    knobs: tuple[Knob, ...]
    conditions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [knob.name for knob in self.knobs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise PlanError(f"each knob must be given once, but {', '.join(twice)} is given twice; join its values")
        if not self.knobs:
            raise PlanError("a search needs at least one knob; give one with --try, for example --try tp=1,2,4,8")

    @property
    def size(self) -> int:
        """The number of combinations, before conditions."""
        return math.prod(len(knob.values) for knob in self.knobs)

    @cached_property
    def _expressions(self) -> tuple[Expression, ...]:
        return tuple(map(Expression, self.conditions))

    def violated(self, configuration: Configuration, facts: Mapping[str, Value]) -> str:
        """Return the first condition that the configuration does not meet, or nothing."""
        values = {**facts, **configuration.to_dict()}
        return next((condition.text for condition in self._expressions if not condition.value(values)), "")

    def combinations(self) -> Iterator[Configuration]:
        """Yield all combinations, the last knob fastest."""
        for values in itertools.product(*(knob.values for knob in self.knobs)):
            yield Configuration(tuple(zip((knob.name for knob in self.knobs), values, strict=True)))


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
