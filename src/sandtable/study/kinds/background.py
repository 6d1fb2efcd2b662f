"""Services beside a trainer: threads that end with the process, and whose failure ends the training."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

__all__ = ["in_background", "result_beside"]

Result = TypeVar("Result")


def in_background(function: Callable[[], Result], *, name: str) -> "Future[Result]":
    """Call it in a thread of its own."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def result_beside(wanted: "Future[Result]", services: "Iterable[Future[Any]]") -> Result:
    """What `wanted` gives, unless one of the services fails first: then its error. Services may end well meanwhile."""
    waiting: set[Future[Any]] = {wanted, *services}
    while not wanted.done():
        ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for service in ended - {wanted}:
            service.result()
    return wanted.result()
