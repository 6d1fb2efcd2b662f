"""Accesses: which pointers a Triton kernel reads and writes, found in its Python source.

A pointer argument flows through arithmetic (`x_ptr + offsets`) into variables, tuples, block pointers and descriptors,
and from there into `tl.load`, `tl.store` and `tl.atomic_*`, or into another kernel function that is called. So each
variable has the set of parameters that it may point into. Assignments are followed again and again until no set grows,
without regard to their order: a variable may then seem to point into more than it does, never into less. What is loaded
is a value and points nowhere.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Accesses", "find_accesses"]

_READS = frozenset({"load", "gather", "descriptor_load", "descriptor_gather", "async_copy_global_to_local"})
_WRITES = frozenset({"store", "scatter", "descriptor_store", "descriptor_scatter"})
_ATOMIC = "atomic_"
_PRODUCTS = frozenset({"dot", "dot_scaled", "warpgroup_mma", "mma_v2", "tcgen05_mma"})
_POINTERS = frozenset({
    "advance", "assume", "broadcast_to", "cast", "expand_dims", "make_block_ptr", "make_tensor_descriptor",
    "max_constancy", "max_contiguous", "multiple_of", "reshape", "to", "trans", "view", "where",
})  # fmt: skip
"""Functions of `triton.language` whose result points where their arguments do."""

_MAX_DEPTH = 16
"""Of functions that call each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accesses:
    """Names of parameters that a kernel reads from and writes to, and whether it computes matrix products."""

    read: frozenset[str]
    written: frozenset[str]
    has_products: bool = False


def find_accesses(function: Callable[..., Any]) -> Accesses | None:
    """Return the accesses of a kernel's Python function; None if its source is not to be had."""
    return _accesses(function, depth=0)


def _accesses(function: Callable[..., Any], *, depth: int) -> Accesses | None:
    definition = _definition(function)
    if definition is None or depth > _MAX_DEPTH:
        return None
    reader = _Reader(definition, _names_in(function), depth)
    return reader.read()


def _definition(function: Callable[..., Any]) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    return next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)


def _names_in(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the global names that a function sees, and those of the functions around it."""
    closure = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
    return {**function.__globals__, **closure}


class _Reader:
    """Follows the pointers of one function."""

    def __init__(self, definition: ast.FunctionDef, names: Mapping[str, Any], depth: int) -> None:
        arguments = definition.args
        self._body = definition.body
        self._names = names
        self._depth = depth
        self._parameters = [item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        self._points = {name: frozenset({name}) for name in self._parameters}
        self._read: set[str] = set()
        self._written: set[str] = set()
        self._has_products = False

    def read(self) -> Accesses:
        while self._follow_assignments():
            pass
        for node in self._nodes():
            if isinstance(node, ast.Call):
                self._note_call(node)
        return Accesses(read=frozenset(self._read), written=frozenset(self._written), has_products=self._has_products)

    def _nodes(self) -> Iterator[ast.AST]:
        for statement in self._body:
            yield from ast.walk(statement)

    # ---- where variables point ----

    def _follow_assignments(self) -> bool:
        """Follow every assignment once; return whether some variable points into more than before."""
        grown = False
        for node in self._nodes():
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    grown |= self._assign(target, node.value)
            elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                grown |= self._assign(node.target, node.value)
            elif isinstance(node, ast.For):
                grown |= self._assign(node.target, node.iter)
        return grown

    def _assign(self, target: ast.expr, value: ast.expr) -> bool:
        if isinstance(target, (ast.Tuple, ast.List)):
            values = [value] * len(target.elts)
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                values = value.elts
            grown = False
            for part, part_value in zip(target.elts, values, strict=True):
                grown |= self._assign(part, part_value)
            return grown
        if isinstance(target, ast.Starred):
            return self._assign(target.value, value)
        if not isinstance(target, ast.Name):
            return False
        before = self._points.get(target.id, frozenset())
        self._points[target.id] = before | self._pointed(value)
        return self._points[target.id] != before

    def _pointed(self, node: ast.AST) -> frozenset[str]:
        """Return the parameters that an expression may point into."""
        if isinstance(node, ast.Name):
            return self._points.get(node.id, frozenset())
        if isinstance(node, ast.Call):
            name, base = _called(node)
            if name in _READS or name.startswith(_ATOMIC):
                return frozenset()
            if base is None or name in _POINTERS or self._function(node) is not None:
                return self._pointed_in(node)
            return frozenset()
        if isinstance(node, (ast.Compare, ast.Constant, ast.Lambda)):
            return frozenset()
        return self._pointed_in(node)

    def _pointed_in(self, node: ast.AST) -> frozenset[str]:
        return frozenset().union(*(self._pointed(child) for child in ast.iter_child_nodes(node)))

    # ---- what is done with them ----

    def _note_call(self, node: ast.Call) -> None:
        name, base = _called(node)
        function = self._function(node)
        if function is not None:
            self._note_function(node, function)
        elif name in _PRODUCTS:
            self._has_products = True
        elif name in _READS or name in _WRITES or name.startswith(_ATOMIC):
            # tl.load(pointer, ...) or descriptor.load(...): an index may be a descriptor's, never a pointer's
            is_method = base is not None and bool(self._pointed(base))
            address = base if is_method else next(iter([*node.args, *(item.value for item in node.keywords)]), None)
            pointed = frozenset() if address is None else self._pointed(address)
            if name not in _WRITES:
                self._read |= pointed
            if name not in _READS:
                self._written |= pointed

    def _note_function(self, node: ast.Call, function: Callable[..., Any]) -> None:
        """Note what a kernel function does with the pointers that it is given."""
        inner = _accesses(function, depth=self._depth + 1)
        try:
            bound = inspect.signature(function).bind_partial(
                *node.args, **{item.arg: item.value for item in node.keywords if item.arg is not None}
            )
        except TypeError:
            inner = None
        if inner is None:
            for argument in (*node.args, *(item.value for item in node.keywords)):
                self._read |= self._pointed(argument)
                self._written |= self._pointed(argument)
            return
        self._has_products |= inner.has_products
        for name, argument in bound.arguments.items():
            values = argument if isinstance(argument, tuple) else [argument]
            pointed = frozenset().union(*(self._pointed(value) for value in values))
            if name in inner.read:
                self._read |= pointed
            if name in inner.written:
                self._written |= pointed

    def _function(self, node: ast.Call) -> Callable[..., Any] | None:
        """Return the Python function of a kernel function that is called, which is not one of Triton's own."""
        value = self._value(node.func)
        function = getattr(value, "fn", None)
        module = getattr(function, "__module__", None) or ""
        return function if inspect.isfunction(function) and module.partition(".")[0] != "triton" else None

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self._value(node.value), node.attr, None)
        return None


def _called(node: ast.Call) -> tuple[str, ast.expr | None]:
    """Return the last part of the name of what is called (`load` of `tl.load`), and what stands before it."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr.removeprefix("_experimental_"), function.value
    return (function.id if isinstance(function, ast.Name) else ""), None
