"""Services beside a trainer: who fails, fails the training."""

import threading
from concurrent.futures import Future

import pytest

from sandtable.errors import MethodError
from sandtable.study.kinds.background import in_background, result_beside


def fail() -> None:
    raise MethodError("the server is gone")


def test_result_is_waited_for_while_services_end_well() -> None:
    go_on = threading.Event()
    service = in_background(lambda: go_on.set(), name="service")
    wanted = in_background(lambda: go_on.wait(10), name="wanted")
    assert result_beside(wanted, [service]) is True


def test_service_that_fails_ends_the_waiting_with_its_error() -> None:
    never: Future[int] = Future()
    with pytest.raises(MethodError, match="the server is gone"):
        result_beside(never, [in_background(fail, name="service")])


def test_failure_of_what_is_waited_for_is_told() -> None:
    with pytest.raises(MethodError, match="the server is gone"):
        result_beside(in_background(fail, name="wanted"), [])
