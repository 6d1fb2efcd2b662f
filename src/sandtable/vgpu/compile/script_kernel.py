"""Script kernels: kernels of Triton that the script wrote, where Inductor launches them from a compiled graph.

Inductor copies the kernel's source, with what it is compiled with around it, and launches it with the arguments that
are left and the sizes of the grid:

    @triton_heuristics.user_autotune(triton_meta={'signature': {'x_ptr': '*fp32', 'n': 'i32', 'BLOCK': 'constexpr'},
                                                  'constants': {'BLOCK': 256}, ...}, ...)

    add_0.run(buf0, 1000, 4, 1, 1, stream=raw_stream0)

So the launch is that of the script's function, with all of its arguments. Integers that are 1 are compiled in: the
signature calls them constants, but they are passed all the same.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

from sandtable.trace.work import Work
from sandtable.vgpu.packages.triton.launches import is_constant, record_launch

__all__ = ["ScriptKernel", "function_of_script"]

_GRID_DIMENSIONS = 3


class ScriptKernel:
    """Stands where Inductor expects a compiled kernel: `run` is called with its arguments and its grid."""

    def __init__(self, function: Callable[..., Any], source: str) -> None:
        self._function = function
        meta = _keyword(source, "triton_meta")
        signature = _literals(meta.get("signature"))
        self._constants = _literals(meta.get("constants"))
        self._names = tuple(name for name, kind in signature.items() if kind != "constexpr")
        self._parameters = tuple(name for name in signature if not is_constant(function, name))

    def run(self, *arguments: Any, stream: Any = None, **_: Any) -> None:
        """Record one launch."""
        names = self._names
        if len(arguments) == len(self._parameters) + _GRID_DIMENSIONS:
            names = self._parameters
        named = dict(zip(names, arguments, strict=False))
        sizes = arguments[len(names) :]
        grid = tuple(int(size) for size in sizes) if len(sizes) == _GRID_DIMENSIONS else ()
        if all(grid):
            record_launch(self._function, {**self._constants, **named}, Work(grid=grid))


def function_of_script(name: str) -> Callable[..., Any] | None:
    """Return the Python function of a kernel that the script wrote, by its name; None if Inductor wrote it."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    for kernel in kernel_side_table.id_to_kernel.values():
        function: Any = kernel
        while not inspect.isfunction(function):
            function = function.fn
        if function.__name__ == name:
            return function
    return None


def _keyword(source: str, name: str) -> dict[str, ast.expr]:
    """Return a dictionary that a decorator in the source is given as a keyword: its values as they are written."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    for keyword in (keyword for call in calls for keyword in call.keywords if keyword.arg == name):
        return _entries(keyword.value)
    return {}


def _entries(node: ast.expr | None) -> dict[str, ast.expr]:
    if not isinstance(node, ast.Dict):
        return {}
    pairs = zip(node.keys, node.values, strict=True)
    return {key.value: value for key, value in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def _literals(node: ast.expr | None) -> dict[str, Any]:
    """Return the entries of a dictionary that are plain values."""
    values = {}
    for name, value in _entries(node).items():
        try:
            values[name] = ast.literal_eval(value)
        except ValueError:  # a type of the language, for example
            continue
    return values
