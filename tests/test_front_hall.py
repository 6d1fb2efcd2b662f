"""`import sandtable`: a small, flat, typed API that costs nothing until it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sandtable

SOURCE = Path(sandtable.__file__)


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_takes_milliseconds_and_no_torch():
    code = (
        "import sys, time\nstart = time.perf_counter()\nimport sandtable\n"
        "print((time.perf_counter() - start) * 1000, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    runs = [run_python(code).split() for _ in range(3)]
    assert min(float(milliseconds) for milliseconds, _, _ in runs) < 50
    assert all((torch, numpy) == ("False", "False") for _, torch, numpy in runs)


@pytest.mark.parametrize("name", ["Trace", "load", "rehearse", "Launcher", "partition", "validate"])
def test_using_a_name_does_not_import_torch(name):
    assert run_python(f"import sys, sandtable; sandtable.{name}; print('torch' in sys.modules)") == "False"


def test_all_is_complete_and_sorted():
    assert sandtable.__all__ == sorted(sandtable.__all__)
    assert set(sandtable.__all__) == set(sandtable._ROOM_OF)
    public = {name for name in vars(sandtable) if not name.startswith("_")}
    modules = {path.stem for path in SOURCE.parent.iterdir()}
    assert public - set(sandtable.__all__) - modules <= {"TYPE_CHECKING", "Any", "annotations", "importlib"}


def test_every_name_resolves_and_is_documented():
    for name in sandtable.__all__:
        value = getattr(sandtable, name)
        assert isinstance(value, str) or name == "Listener" or value.__doc__, name
    assert set(sandtable.__all__) <= set(dir(sandtable))


def test_type_checkers_see_the_names_that_are_loaded_lazily():
    block = next(node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name: (node.module.removeprefix("sandtable."), alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    lazy = {
        name: (place.partition(".")[0], place.partition(".")[2] or name) for name, place in sandtable._ROOM_OF.items()
    }
    assert seen == lazy


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sandtable.nothing
