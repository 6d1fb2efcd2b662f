"""Functions fit on a screen, and a call fits in the head."""

import ast
import re

from tests.structure.source import MIRRORS, Function, listed, modules

MAX_LINES = 60
MAX_PARAMETERS = 8
MAX_POSITIONAL = 3
"""Positional parameters of a constructor that has more than MAX_PARAMETERS in all."""


def test_no_function_is_too_long() -> None:
    problems = [
        f"{module.at(function.lineno)} {function.name}: {lines} lines"
        for module in modules().values()
        for function, _ in module.functions()
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > MAX_LINES
    ]
    assert not problems, listed(problems, f"split it into functions of at most {MAX_LINES} lines")


def test_no_function_has_too_many_parameters() -> None:
    """Public constructors may have more, if the options are keyword-only and documented."""
    problems = [
        f"{module.at(function.lineno)} {function.name}: {count} parameters{_excuse(function, owner)}"
        for name, module in modules().items()
        if not name.startswith(MIRRORS)
        for function, owner in module.functions()
        if (count := len(_parameters(function))) > MAX_PARAMETERS and _excuse(function, owner) is not None
    ]
    remedy = f"at most {MAX_PARAMETERS}: group parameters that belong together in a frozen dataclass"
    assert not problems, listed(problems, remedy)


def _parameters(function: Function) -> list[str]:
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return names[1:] if names and names[0] in {"self", "cls"} else names


def _excuse(function: Function, owner: ast.ClassDef | None) -> str | None:
    """Return None for a constructor that may have many parameters, else what it lacks to be one."""
    if function.name != "__init__" or owner is None or owner.name.startswith("_"):
        return ""
    parameters, keyword_only = _parameters(function), [each.arg for each in function.args.kwonlyargs]
    if len(parameters) - len(keyword_only) > MAX_POSITIONAL:
        return f", of which {len(parameters) - len(keyword_only)} are positional (at most {MAX_POSITIONAL})"
    text = f"{ast.get_docstring(owner)} {ast.get_docstring(function)}"
    unnamed = [name for name in parameters if not re.search(rf"\b{name}\b", text)]
    return f"; the docstring does not explain {', '.join(unnamed)}" if unnamed else None
