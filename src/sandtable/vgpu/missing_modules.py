"""Missing modules: what to do about an import that failed, with the functions that the importing file wants of it."""

from __future__ import annotations

import ast
import os
import sys
import tokenize
from collections.abc import Iterator
from types import TracebackType

__all__ = ["missing_module_remedy"]

_MAX_FUNCTIONS = 4


def missing_module_remedy(error: BaseException) -> str:
    """Return how to rehearse a script that imports a module which is not installed; nothing for other errors."""
    if not isinstance(error, ModuleNotFoundError) or not error.name or "--without" in str(error):
        return ""
    functions = _wanted_functions(error.name, _importing_file(error.__traceback__)) or ["function"]
    described = ", ".join(f'@sandtable.cost("{error.name}.{function}")' for function in functions[:_MAX_FUNCTIONS])
    more = " and so on" if len(functions) > _MAX_FUNCTIONS else ""
    package = error.name.partition(".")[0]
    if package in sys.modules and package != error.name:
        advice = f"{package} is installed here without this module: another release may have it"
    else:
        advice = f"install {package} here"
    return (
        f"{advice}; if it is compiled code for a card that cannot be installed, "
        f"describe what the script calls of it, {described}{more}, by functions with the same arguments that return "
        "sandtable.Kernel(outputs=..., flops=..., bytes=...), and pass their file: sandtable run --costs costs.py "
        "(docs/packages.md)"
    )


def _importing_file(frame: TracebackType | None) -> str:
    """Return the file whose import failed: the innermost one that is not the import system's."""
    file = ""
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        if not name.startswith("<") and not name.startswith(os.path.dirname(os.path.abspath(__file__))):
            file = name
        frame = frame.tb_next
    return file


def _wanted_functions(module: str, file: str) -> list[str]:
    """Return the names that a file imports from the module, or calls of it, each once and in order."""
    try:
        with tokenize.open(file) as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return []
    return list(dict.fromkeys(_wanted(module, tree)))


def _wanted(module: str, tree: ast.Module) -> Iterator[str]:
    aliases = {module}
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == module and not node.level:
            yield from (alias.name for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Import):
            aliases |= {alias.asname for alias in node.names if alias.name == module and alias.asname}
    for node in nodes:
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Attribute) and ast.unparse(function.value) in aliases:
            yield function.attr
