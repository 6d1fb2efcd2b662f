"""The room as a whole: what it exports, and what it does not need."""

import subprocess
import sys

import sandtable.trace


def test_exports_are_complete_and_sorted():
    names = sandtable.trace.__all__
    constants = [name for name in names if name.isupper()]
    classes = [name for name in names if name[0].isupper() and not name.isupper()]
    functions = [name for name in names if name[0].islower()]
    assert names == sorted(constants) + sorted(classes) + sorted(functions)
    assert all(hasattr(sandtable.trace, name) for name in names)
    public = {
        name
        for name, value in vars(sandtable.trace).items()
        if getattr(value, "__module__", "").startswith("sandtable.trace") and not name.startswith("_")
    }
    assert public <= set(names)


def test_a_trace_is_read_without_torch():
    code = "import sys, sandtable.trace; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
