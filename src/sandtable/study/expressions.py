"""Method expressions: `LocalSGD(period=16)` in a settings file means what it means in Python.

An expression is a name with numbers, strings, booleans, lists or other such expressions as arguments. It is parsed and
never executed, so a settings file can do nothing but name a method.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sandtable.errors import StudyError

__all__ = ["CallExpression", "parse_call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallExpression:
    """A name with its arguments, not yet looked up."""

    name: str
    positional: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()

    def build(
        self, classes: Mapping[str, Callable[..., Any]], *, rule: str = "a method must be one of sandtable.methods"
    ) -> Any:
        """Call what `classes` has under this name; `rule` opens the message if there is none."""
        if self.name not in classes:
            raise StudyError(f"{rule}, but got {self.name}; choose one of {sorted(classes)}")
        positional = [_built(value, classes) for value in self.positional]
        named = {key: _built(value, classes) for key, value in self.named}
        try:
            return classes[self.name](*positional, **named)
        except (TypeError, ValueError) as error:
            raise StudyError(f"{self.name} must be given its own arguments, but: {error}; see its docstring") from None


def parse_call(text: str) -> CallExpression:
    """Parse `TopK(0.01)` or `Gossip`; raise ValueError with the rule if the text is neither."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        tree = None
    if isinstance(tree, ast.Name):
        return CallExpression(name=tree.id)
    if isinstance(tree, ast.Call):
        return _call(tree)
    raise ValueError('must be a name with arguments in brackets, such as "LocalSGD(period=16)"')


def _call(node: ast.Call) -> CallExpression:
    if not isinstance(node.func, ast.Name) or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError('must be one plain name with arguments in brackets, such as "TopK(0.01)"')
    return CallExpression(
        name=node.func.id,
        positional=tuple(_value(argument) for argument in node.args),
        named=tuple((str(keyword.arg), _value(keyword.value)) for keyword in node.keywords),
    )


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        return _call(node)
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(_value(element) for element in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError("must have only numbers, strings, True, False, lists and methods as arguments") from None


def _built(value: Any, classes: Mapping[str, Callable[..., Any]]) -> Any:
    if isinstance(value, CallExpression):
        return value.build(classes)
    if isinstance(value, tuple):
        return [_built(element, classes) for element in value]
    return value
