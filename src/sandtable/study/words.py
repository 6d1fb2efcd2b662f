"""Methods in words: `LocalSGD(period=16)` in a settings file means what it means in Python.

Only this form is read: a name from `sandtable.methods`, then numbers, texts, truths, lists or other such words in
brackets. It is taken apart as syntax and never executed, so a settings file cannot do anything but name a method.
"""

import ast
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sandtable.errors import StudyError

__all__ = ["Word", "parse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A name with its arguments, not yet looked up."""

    name: str
    positional: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()

    def build(self, module: ModuleType, *, rule: str = "a method must be one of sandtable.methods") -> Any:
        """The object that `module` makes of this word; `rule` is for the message if it knows no such name."""
        known = sorted(getattr(module, "__all__", ()))
        if self.name not in known:
            raise StudyError(f"{rule}, but got {self.name}; there are {known}")
        positional = [_built(value, module) for value in self.positional]
        named = {key: _built(value, module) for key, value in self.named}
        try:
            return getattr(module, self.name)(*positional, **named)
        except (TypeError, ValueError) as error:
            raise StudyError(f"{self.name} must be given its own arguments, but: {error}; see its docstring") from None


def parse(text: str) -> Word:
    """`TopK(0.01)` or `Gossip` as a `Word`; ValueError with the rule if it is neither."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        tree = None
    if isinstance(tree, ast.Name):
        return Word(name=tree.id)
    if isinstance(tree, ast.Call):
        return _call(tree)
    raise ValueError('must be a name with arguments in brackets, such as "LocalSGD(period=16)"')


def _call(node: ast.Call) -> Word:
    if not isinstance(node.func, ast.Name) or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError('must be one plain name with arguments in brackets, such as "TopK(0.01)"')
    return Word(
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
        raise ValueError("must have only numbers, texts, True, False, lists and methods as arguments") from None


def _built(value: Any, module: ModuleType) -> Any:
    if isinstance(value, Word):
        return value.build(module)
    if isinstance(value, tuple):
        return [_built(each, module) for each in value]
    return value
