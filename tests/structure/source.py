"""The package as syntax trees: what the tests of its structure read. Nothing is imported, least of all torch."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PACKAGE = "sandtable"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    file: Path

    @cached_property
    def tree(self) -> ast.Module:
        """Return the syntax tree."""
        return ast.parse(self.file.read_text(encoding="utf-8"))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Return every node of the tree."""
        return list(ast.walk(self.tree))

    @property
    def is_package(self) -> bool:
        """Return whether this is the `__init__` of a package."""
        return self.file.name == "__init__.py"

    def at(self, line: int) -> str:
        """Return file and line, as an editor opens them."""
        return f"{self.file.relative_to(ROOT)}:{line}"

    def functions(self) -> Iterator[tuple[Function, ast.ClassDef | None]]:
        """Yield every function, nested ones too, with the class whose body it stands in."""
        owners = {id(child): node for node in self.nodes if isinstance(node, ast.ClassDef) for child in node.body}
        for node in self.nodes:
            if isinstance(node, Function):
                yield node, owners.get(id(node))


@cache
def modules() -> dict[str, Module]:
    """Return all modules of the package, keyed by dotted name."""
    found = {}
    for file in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, file)
    return found


@cache
def imports() -> dict[str, dict[str, int]]:
    """Return what each module imports of the package, with the line of the first import.

    Imports in functions and under TYPE_CHECKING count as well: a reader has to follow them too.
    """
    return {name: _imports(module) for name, module in modules().items()}


def _imports(module: Module) -> dict[str, int]:
    known = modules()
    targets: dict[str, int] = {}
    for node in module.nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in inside]
        else:
            continue
        for name in names:
            if name in known and name != module.name:
                targets.setdefault(name, node.lineno)
    return targets


def words_of(identifier: str) -> list[str]:
    """Split snake_case and CamelCase into lower-case words."""
    words: list[str] = []
    for part in identifier.split("_"):
        start = 0
        for index in range(1, len(part)):
            ends_lower = part[index].isupper() and not part[index - 1].isupper()
            starts_word = part[index].isupper() and index + 1 < len(part) and part[index + 1].islower()
            if ends_lower or starts_word:
                words.append(part[start:index])
                start = index
        words.append(part[start:])
    return [word.lower() for word in words if word]


MIRRORS = "sandtable.vgpu.packages."
"""Modules that stand in for other packages' have their classes' names and their functions' parameters."""


def listed(problems: list[str], remedy: str) -> str:
    """Format a failure: one problem per line, then what to do."""
    return "\n".join(["", *problems, f"=> {remedy}"])
