"""Operations on named vectors, which a coordinator that holds no numbers requests from the servers.

    dot      target · source                      the only one that returns a value, a part of the sum
    add      target ← target + factor · source
    scale    target ← factor · target
    multiply target ← target ∘ source             component by component
    copy     target ← source
    zero     target ← 0

An operation takes about fifty bytes, whatever the length of the vectors. It is sent as a list: verb, target, source,
factor.
"""

import enum
import math
from dataclasses import dataclass
from typing import Any

from sandtable.methods.server.message import MalformedError

__all__ = ["Operation", "Verb", "add", "copy", "dot", "multiply", "scale", "zero"]


class Verb(enum.StrEnum):
    DOT = "dot"
    ADD = "add"
    SCALE = "scale"
    MULTIPLY = "multiply"
    COPY = "copy"
    ZERO = "zero"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `source` is empty and `factor` 1 where they are not used."""

    verb: Verb
    target: str
    source: str = ""
    factor: float = 1.0

    def to_wire(self) -> list[Any]:
        return [self.verb.value, self.target, self.source, self.factor]

    @classmethod
    def from_wire(cls, value: Any) -> "Operation":
        """Return the operation in a message, checked."""
        if type(value) is not list or [type(entry) for entry in value[:3]] != [str] * 3 or len(value) != 4:
            raise MalformedError(f"an operation must be [verb, target, source, factor], but is {value!r}")
        verb, target, source, factor = value
        if verb not in list(Verb) or type(factor) not in (int, float) or not math.isfinite(factor):
            raise MalformedError(f"an operation must have a known verb and a finite factor, but is {value!r}")
        return cls(Verb(verb), target, source, float(factor))


def dot(left: str, right: str) -> Operation:
    return Operation(Verb.DOT, left, right)


def add(target: str, source: str, factor: float = 1.0) -> Operation:
    return Operation(Verb.ADD, target, source, factor)


def scale(target: str, factor: float) -> Operation:
    return Operation(Verb.SCALE, target, factor=factor)


def multiply(target: str, source: str) -> Operation:
    return Operation(Verb.MULTIPLY, target, source)


def copy(target: str, source: str) -> Operation:
    return Operation(Verb.COPY, target, source)


def zero(target: str) -> Operation:
    return Operation(Verb.ZERO, target)
