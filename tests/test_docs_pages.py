"""Links lead somewhere, commands name files that exist, and Python examples names and arguments that exist."""

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "validation" / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(?!>>>)(.*?)^```", flags=re.MULTILINE | re.DOTALL)  # docs/api.md is a doctest
DOORS = [f"sandtable.methods.{door}" for door in ("data", "pipeline", "server", "tensor")]
COMMAND_FILE = re.compile(r"(?<![\w/.-])((?:bench|docs|examples|scripts|tests)/[\w/.-]*\w)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    targets = [target for target in LINK.findall(_prose(page)) if "://" not in target]
    assert [target for target in targets if not _leads_somewhere(page, target)] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/benchmarks.md", "docs/methods.md"])
def test_files_that_commands_name_exist(name: str) -> None:
    named = set(COMMAND_FILE.findall((ROOT / name).read_text(encoding="utf-8")))
    assert named
    assert {path for path in named if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_examples_import_what_they_use_and_call_it_as_it_can_be_called(page: Path) -> None:
    imported: dict[str, Any] = {}
    for block in PYTHON.findall(page.read_text(encoding="utf-8")):
        tree = ast.parse(block)
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        exec("\n".join(map(ast.unparse, imports)), imported)
        assert _names_read(tree) & _exported_names() <= imported.keys()
        for call in ast.walk(tree):
            if isinstance(call, ast.Call):
                _check_arguments(call, imported)


def _exported_names() -> set[str]:
    return {name for door in DOORS for name in importlib.import_module(door).__all__}


def _names_read(tree: ast.Module) -> set[str]:
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return {name.id for name in names} - {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _check_arguments(call: ast.Call, imported: dict[str, Any]) -> None:
    function = _resolve(call.func, imported)
    if not str(getattr(function, "__module__", "")).startswith("sandtable"):
        return
    keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
    try:
        inspect.signature(function).bind(*call.args, **keywords)
    except TypeError as error:
        raise AssertionError(f"{ast.unparse(call)}: {error}") from error


def _resolve(name: ast.expr, imported: dict[str, Any]) -> Any:
    """Return what `LocalSGD` or `TopK.sparse_loco` names; None for objects that the example makes."""
    if isinstance(name, ast.Name):
        return imported.get(name.id)
    if isinstance(name, ast.Attribute):
        owner = _resolve(name.value, imported)
        return None if owner is None else getattr(owner, name.attr)
    return None


def _leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    destination = page.parent / path if path else page
    if not destination.exists():
        return False
    return not anchor or anchor in _anchors(destination)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub derives them."""
    headings = re.findall(r"^#+ (.*)$", _prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))
