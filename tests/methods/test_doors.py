"""The four doors: each exports its whole public API, and nothing outside `sandtable.methods` goes past them."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

DOORS = ("data", "pipeline", "server", "tensor")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("door", DOORS)
def test_every_exported_name_is_there(door: str) -> None:
    module = importlib.import_module(f"sandtable.methods.{door}")
    assert module.__doc__
    assert len(set(module.__all__)) == len(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_names_that_are_loaded_on_first_use_are_listed_before_it() -> None:
    program = "from sandtable.methods import data; print(sorted(set(data.__all__) - set(dir(data))))"
    listed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert listed.stdout == "[]\n"


def test_an_unknown_name_is_an_error() -> None:
    module = importlib.import_module("sandtable.methods.data")
    with pytest.raises(AttributeError, match="has no attribute 'Asynchronous'"):
        _ = module.Asynchronous


def test_the_room_itself_exports_nothing() -> None:
    tree = ast.parse((ROOT / "src/sandtable/methods/__init__.py").read_text(encoding="utf-8"))
    assert [type(node) for node in tree.body] == [ast.Expr]


@pytest.mark.parametrize("folder", ["examples", "bench"])
def test_scripts_import_doors_only(folder: str) -> None:
    deep = [
        f"{path.name}: {node.module}"
        for path in (ROOT / folder).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sandtable.methods.")
        if str(node.module).split(".")[2:] not in [[door] for door in DOORS]
    ]
    assert deep == []
