"""Modes: what a traced model does differently in training and in evaluation.

Modules look at their own `training`, but a function gets the mode as a constant (`dropout_p=0.1 if self.training else
0.0`), and a trace would freeze the current one. So the model is traced in both modes. Where the two traces differ only
in a constant, both constants are kept, and a module that knows the mode chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import fx, nn

from sandtable.methods.pipeline.tracer import KIND

__all__ = ["BY_MODE", "ByMode", "in_other_mode", "join_modes"]

BY_MODE = "_by_mode"
"""The name in the graph of the module that chooses."""


class ByMode(nn.Module):
    """Returns one of two constants."""

    def forward(self, in_training: Any, in_evaluation: Any) -> Any:
        return in_training if self.training else in_evaluation


@contextmanager
def in_other_mode(model: nn.Module) -> Iterator[None]:
    """Evaluate instead of train, or the reverse, inside the block; then restore the mode of every module."""
    before = {module: module.training for module in model.modules()}
    model.train(not model.training)
    try:
        yield
    finally:
        for module, mode in before.items():
            module.training = mode


def join_modes(graph: fx.Graph, other: fx.Graph, *, is_training: bool) -> bool:
    """Make `graph`, traced in one mode, behave as `other` in the other; return False if not only constants differ."""
    pairs = list(zip(graph.nodes, other.nodes, strict=False))
    if len(graph.nodes) != len(other.nodes) or not all(_is_same_call(*pair) for pair in pairs):
        return False
    counterpart = {after: before for before, after in pairs}
    differences = []
    for node, twin in pairs:
        for name in ("args", "kwargs"):
            try:
                differences.append((node, name, _differing(getattr(node, name), getattr(twin, name), counterpart)))
            except _Unlike:
                return False
    for node, name, differing in differences:
        for path, value in differing.items():
            own = _at(getattr(node, name), path)
            constants = (own, value) if is_training else (value, own)
            with graph.inserting_before(node):
                choice = graph.call_module(BY_MODE, constants)
            choice.meta[KIND] = "number"
            setattr(node, name, _with(getattr(node, name), path, choice))
    return True


class _Unlike(Exception):
    pass


_Path = tuple[Any, ...]


def _is_same_call(one: fx.Node, other: fx.Node) -> bool:
    return one.op == other.op and one.target == other.target


def _differing(one: Any, other: Any, counterpart: dict[fx.Node, fx.Node], at: _Path = ()) -> dict[_Path, Any]:
    """Return where in the arguments the constants differ, with the other's constant."""
    if isinstance(one, fx.Node) or isinstance(other, fx.Node):
        if counterpart.get(other) is not one:
            raise _Unlike
        return {}
    if isinstance(one, slice) and isinstance(other, slice):
        one, other = _ends(one), _ends(other)
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        parts = [_differing(one[key], other[key], counterpart, (*at, key)) for key in one]
    elif isinstance(one, tuple | list) and isinstance(other, tuple | list) and len(one) == len(other):
        parts = [_differing(*pair, counterpart, (*at, key)) for key, pair in enumerate(zip(one, other, strict=True))]
    elif isinstance(one, dict | tuple | list) or isinstance(other, dict | tuple | list):
        raise _Unlike
    else:
        return {} if one == other else {at: other}
    return {path: value for part in parts for path, value in part.items()}


def _at(arguments: Any, path: _Path) -> Any:
    for key in path:
        arguments = (_ends(arguments) if isinstance(arguments, slice) else arguments)[key]
    return arguments


def _with(arguments: Any, path: _Path, value: Any) -> Any:
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(arguments, dict):
        return {**arguments, key: _with(arguments[key], rest, value)}
    if isinstance(arguments, slice):
        return slice(*_with(_ends(arguments), path, value))
    return (*arguments[:key], _with(arguments[key], rest, value), *arguments[key + 1 :])


def _ends(one: slice) -> tuple[Any, Any, Any]:
    return (one.start, one.stop, one.step)
