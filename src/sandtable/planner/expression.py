"""Expressions: the arithmetic of conditions and of words in a command, such as `tp * pp <= 64`.

Only numbers, names, arithmetic, comparisons and `and`, `or`, `not` are allowed, and a few functions, so that an
expression from a file or a colleague cannot do anything but compute a value.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sandtable.errors import PlanError

__all__ = ["Expression", "Value"]

Value = int | float | str | bool
"""What a knob can be set to."""

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs, "int": int, "round": round}
_MAX_EXPONENT = 64
_ALLOWED: tuple[Any, ...] = (
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Constant, ast.Name, ast.Tuple, ast.List),
    *(ast.Load, ast.And, ast.Or, *_BINARY, *_UNARY, *_COMPARISONS),
)


@dataclass(frozen=True)
class Expression:
    """A parsed expression. Raises PlanError if the text is none, or uses more than is allowed."""

    text: str

    def __post_init__(self) -> None:
        _ = self.names

    @cached_property
    def _body(self) -> ast.expr:
        try:
            return ast.parse(self.text.strip(), mode="eval").body
        except SyntaxError as error:
            raise PlanError(
                f"an expression must be arithmetic or a comparison of knobs, but '{self.text}' is not ({error.msg}); "
                "for example 'tp * pp <= 64'"
            ) from error

    @cached_property
    def names(self) -> frozenset[str]:
        """The names whose values the expression needs."""
        functions = {id(node.func) for node in ast.walk(self._body) if isinstance(node, ast.Call)}
        names = set()
        for node in ast.walk(self._body):
            self._require_allowed(node)
            if isinstance(node, ast.Name) and id(node) not in functions:
                names.add(node.id)
        return frozenset(names)

    def value(self, values: Mapping[str, Value]) -> Any:
        """Return what the expression gives with these values."""
        unknown = sorted(self.names - values.keys())
        if unknown:
            raise PlanError(
                f"names in '{self.text}' must be knobs, but {', '.join(unknown)} is none; known are "
                f"{', '.join(sorted(values))}"
            )
        try:
            return self._evaluate(self._body, values)
        except (TypeError, ValueError, ArithmeticError) as error:
            known = ", ".join(f"{name}={values[name]}" for name in sorted(self.names))
            raise PlanError(
                f"'{self.text}' must have a value for every configuration, but with {known} it has none: {error}"
            ) from error

    def _require_allowed(self, node: ast.AST) -> None:
        match node:
            case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
                return
        if not isinstance(node, _ALLOWED):
            raise PlanError(
                f"an expression may have numbers, texts, knobs, arithmetic, comparisons and the functions "
                f"{', '.join(_FUNCTIONS)}, but '{self.text}' has something else; rewrite it with these"
            )

    def _evaluate(self, node: ast.expr, values: Mapping[str, Value]) -> Any:
        def value_of(part: ast.expr) -> Any:
            return self._evaluate(part, values)

        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return values[name]
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return [value_of(item) for item in items]
            case ast.UnaryOp(op=op, operand=operand):
                return _UNARY[type(op)](value_of(operand))
            case ast.BinOp(left=left, op=op, right=right):
                one, other = value_of(left), value_of(right)
                if isinstance(op, ast.Pow) and abs(other) > _MAX_EXPONENT:
                    raise ValueError(f"the exponent {other} is too large")
                return _BINARY[type(op)](one, other)
            case ast.BoolOp(op=op, values=parts):
                decide = all if isinstance(op, ast.And) else any
                return decide(value_of(part) for part in parts)
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                return value_of(body) if value_of(test) else value_of(otherwise)
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [value_of(side) for side in (left, *others)]
                pairs = zip(ops, sides, sides[1:], strict=False)
                return all(_COMPARISONS[type(op)](one, other) for op, one, other in pairs)
            case ast.Call(func=ast.Name(id=name), args=args):
                return _FUNCTIONS[name](*map(value_of, args))
        raise AssertionError(node)
