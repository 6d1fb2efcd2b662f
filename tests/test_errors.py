"""Errors: one tree, readable messages, and they survive a trip between processes."""

import pickle

import pytest

from sandtable import errors
from sandtable.errors import SandtableError, ScriptError
from sandtable.findings import Finding, Severity

FAILED = Finding(
    rule="script-error", severity=Severity.ERROR, message="rank 3 of the script failed with exit code 7", ranks=(3,)
)
ALL = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("error", ALL)
def test_every_error_is_a_sandtable_error_with_an_exit_code(error: type[SandtableError]) -> None:
    assert issubclass(error, SandtableError)
    assert error.exit_code == 1


def test_every_error_is_drawn_in_the_tree() -> None:
    assert errors.__doc__ is not None
    assert [name for name in errors.__all__ if name not in errors.__doc__] == []


def test_script_error_shows_the_rank_and_the_scripts_own_traceback() -> None:
    error = ScriptError(FAILED, "Traceback (most recent call last):\nValueError: no\n", exit_code=7)
    assert str(error).splitlines()[0] == "rank 3 of the script failed with exit code 7"
    assert str(error).endswith("ValueError: no")


def test_script_error_without_traceback_is_one_line() -> None:
    assert "\n" not in str(ScriptError(FAILED, "", exit_code=1))


def test_script_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(ScriptError(FAILED, "text", exit_code=7)))
    assert (error.rank, error.findings, error.traceback, error.exit_code) == (3, (FAILED,), "text", 7)
