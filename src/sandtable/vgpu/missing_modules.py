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
_REMOVED = frozenset({"asyncore", "asynchat", "cgi", "imp", "pipes", "smtpd", "telnetlib"})
"""Modules of the standard library that training code used, and that newer Pythons have removed."""


def missing_module_remedy(error: BaseException) -> str:
    """Return how to rehearse a script that imports a module which is not installed; nothing for other errors."""
    if not isinstance(error, ModuleNotFoundError) or not error.name or "--without" in str(error):
        return ""
    package = error.name.partition(".")[0]
    if advice := _advice_on_python_code(error.name, package):
        return advice
    functions = _wanted_functions(error.name, _importing_file(error.__traceback__)) or ["function"]
    described = ", ".join(f'@sandtable.cost("{error.name}.{function}")' for function in functions[:_MAX_FUNCTIONS])
    more = " and so on" if len(functions) > _MAX_FUNCTIONS else ""
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


def _advice_on_python_code(name: str, package: str) -> str:
    """Return what to do about a module that is certainly no compiled package; nothing for others."""
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    if package == "torch" and package in sys.modules:
        release = getattr(sys.modules[package], "__version__", "")
        return f"torch {release} has no {name}: the code asks for another release of torch, here as on the cluster"
    if package == "distutils":
        return f"{python} no longer has distutils; setuptools brings it: pip install setuptools"
    if package in _REMOVED:
        return f"{python} no longer has {package}: the code asks for an older Python, here as on the cluster"
    if package not in sys.modules and _is_source(package):
        return (
            f"{package} is in the working directory, which Python does not search when a script in another directory "
            "runs: install it (pip install -e .) or set PYTHONPATH=."
        )
    return ""


def _is_source(package: str) -> bool:
    return os.path.isfile(f"{package}.py") or any(
        name.endswith(".py") for name in (os.listdir(package) if os.path.isdir(package) else ())
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
