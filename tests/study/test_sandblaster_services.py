"""Services beside a Sandblaster trainer: if one fails, so does the training."""

import threading
from concurrent.futures import Future

import pytest

from sandtable.errors import MethodError
from sandtable.study.kinds.sandblaster import _result_unless_failed, _run_in_background


def fail() -> None:
    raise MethodError("the server is gone")


def test_result_is_waited_for_while_services_end_well() -> None:
    go_on = threading.Event()
    service = _run_in_background(lambda: go_on.set(), name="service")
    wanted = _run_in_background(lambda: go_on.wait(10), name="wanted")
    assert _result_unless_failed(wanted, [service]) is True


def test_service_that_fails_ends_the_waiting_with_its_error() -> None:
    never: Future[int] = Future()
    with pytest.raises(MethodError, match="the server is gone"):
        _result_unless_failed(never, [_run_in_background(fail, name="service")])


def test_failure_of_what_is_waited_for_is_raised() -> None:
    with pytest.raises(MethodError, match="the server is gone"):
        _result_unless_failed(_run_in_background(fail, name="wanted"), [])
