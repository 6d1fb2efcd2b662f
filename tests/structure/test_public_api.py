"""What a package exports: `__all__` is complete and sorted, and signatures are typed.

Sorted means ruff's order (RUF022): CONSTANTS, then Classes, then functions, each by name, numbers by value.
"""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from tests.structure.source import PACKAGE, Function, Module, listed, modules

PACKAGES = {name: module for name, module in modules().items() if module.is_package}
ROOMS = {name: module for name, module in PACKAGES.items() if name.count(".") <= 1}
TORCH_PROTOCOL = {"state_dict", "load_state_dict", "full_state_dict"}
"""Methods whose signature is torch's."""


def test_all_names_everything_public() -> None:
    """A package may also import what its own code uses; every other import is a re-export."""
    problems = []
    for module in PACKAGES.values():
        exported = _exported(module)
        if exported is None:
            continue
        imported, defined = _imported(module), _defined(module)
        used = {node.id for node in module.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        public = defined | {name: line for name, line in imported.items() if name not in used}
        problems += [
            f"{module.at(line)} {name} is not in __all__"
            for name, line in public.items()
            if not name.startswith("_") and name not in exported
        ]
        known = {*imported, *defined, *(name.rpartition(".")[2] for name in modules() if _is_inside(name, module))}
        absent = [] if "__getattr__" in defined else [name for name in exported if name not in known]
        problems += [f"{module.at(1)} {name} of __all__ is not defined" for name in absent]
    assert not problems, listed(problems, "list the name in __all__, or import it where it is used")


def test_all_is_sorted() -> None:
    problems = [
        f"{module.at(1)} {name} should not come before {following}"
        for module in PACKAGES.values()
        if (exported := _exported(module))
        for name, following in pairwise(exported)
        if _order(name) > _order(following)
    ]
    assert not problems, listed(problems, "sort __all__ (`ruff check --select RUF022 --fix`)")


def test_exported_signatures_have_no_untyped_dictionaries() -> None:
    problems = {
        f"{module.at(annotation.lineno)} {function.name}: {ast.unparse(annotation)}"
        for room in ROOMS.values()
        for name in _exported(room) or ()
        for module, function in _exported_functions(room, name)
        if function.name not in TORCH_PROTOCOL
        for annotation in _annotations(function)
        if re.search(r"\bdict\[str, (typing\.)?Any\]", ast.unparse(annotation))
    }
    assert not problems, listed(sorted(problems), "return or take a frozen dataclass or a TypedDict")


def _exported(module: Module) -> list[str] | None:
    """Return `__all__` as written, or None without one."""
    for node in module.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            value = getattr(node, "value", None)
            return [ast.literal_eval(each) for each in getattr(value, "elts", [])]
    return None


def _imported(module: Module) -> dict[str, int]:
    """Return the names that a package's `__init__` imports from sandtable, with their lines."""
    return {
        alias.asname or alias.name: node.lineno
        for node in _statements(module.tree.body)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE
        for alias in node.names
    }


def _defined(module: Module) -> dict[str, int]:
    """Return the names that a package's `__init__` defines itself, with their lines."""
    names: dict[str, int] = {}
    for node in module.tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names[name] = node.lineno
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names[name] = node.lineno
    return names


def _is_inside(name: str, package: Module) -> bool:
    return name.rpartition(".")[0] == package.name


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those under `if TYPE_CHECKING` too."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _statements([*node.body, *node.orelse])


def _order(name: str) -> tuple[int, list[tuple[int, int | str]]]:
    is_constant = len(name) > 1 and name.isupper()
    rank = 0 if is_constant else 1 if name[0].isupper() else 2
    return rank, [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]


def _exported_functions(module: Module, name: str) -> Iterator[tuple[Module, Function]]:
    """Yield the function of that name, or the public methods of the class, wherever it is defined."""
    for node in _statements(module.tree.body):
        match node:
            case ast.ImportFrom(module=str(source)) if source in modules():
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        yield from _exported_functions(modules()[source], alias.name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name == name:
                yield module, node
            case ast.ClassDef() if node.name == name:
                methods = [method for method in node.body if isinstance(method, Function)]
                yield from (
                    (module, method)
                    for method in methods
                    if not method.name.startswith("_") or method.name in {"__init__", "__call__"}
                )


def _annotations(function: Function) -> Iterator[ast.expr]:
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    yield from (each.annotation for each in every if each is not None and each.annotation is not None)
    if function.returns is not None:
        yield function.returns
