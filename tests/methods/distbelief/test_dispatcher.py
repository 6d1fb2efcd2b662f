"""The dispatcher: reports and portions, without a socket."""

from typing import Any

import pytest

from sandtable.errors import MethodError
from sandtable.methods.server import Sandblaster, WorkQueue
from sandtable.methods.server.distbelief.dispatcher import Dispatcher
from sandtable.methods.server.distbelief.sessions import Caller
from sandtable.methods.server.message import MalformedError, MessageKind, ServerMessage
from sandtable.methods.server.request_handler import RefusedError

FIRST, SECOND = Caller(1, "a"), Caller(2, "b")


class Desk:
    def __init__(self, num_portions: int, timeout_s: float = 1.0) -> None:
        self.portions = WorkQueue(num_samples=num_portions, size=1)
        self.dispatcher = Dispatcher(self.portions, identity=Sandblaster().identity(1), timeout_s=timeout_s)
        for caller in (FIRST, SECOND):
            self.dispatcher.welcome(caller)

    def ask(self, caller: Caller, *report: Any) -> dict[str, Any]:
        fields = {"patience_s": 0.0, **({"report": list(report)} if report else {})}
        return self.dispatcher.answer(caller, ServerMessage(MessageKind.PORTION, fields, memoryview(b"")))[0]


def test_nobody_gets_a_portion_before_an_evaluation_is_open_or_after():
    desk = Desk(1)
    assert desk.ask(FIRST) == {}
    desk.dispatcher.open("first")
    assert desk.ask(FIRST) == {"evaluation": "first", "portion": 0, "start": 0, "stop": 1}
    desk.dispatcher.shut()
    assert desk.ask(SECOND) == {}


def test_the_first_report_of_a_portion_is_collected_with_its_sender():
    desk = Desk(1)
    desk.dispatcher.open("first")
    desk.ask(FIRST)
    desk.ask(SECOND)
    desk.ask(SECOND, "first", 0, 0.5)
    desk.ask(FIRST, "first", 0, 0.5)
    assert desk.dispatcher.collect() == [(0, "b")]
    assert desk.portions.loss == 0.5


def test_a_report_of_another_evaluation_does_not_count():
    desk = Desk(1)
    desk.dispatcher.open("first")
    desk.ask(FIRST)
    desk.dispatcher.open("second")
    desk.ask(SECOND)
    desk.ask(FIRST, "first", 0, 0.5)
    assert not desk.portions.are_complete


def test_a_request_that_is_repeated_leaves_no_portion_behind():
    """Repeat a request whose answer was lost: nobody works on the portion it gave."""
    desk = Desk(2)
    desk.dispatcher.open("first")
    lost, again = desk.ask(FIRST), desk.ask(FIRST)
    assert again == lost
    assert desk.portions.outstanding == {0: ("a",)}


def test_after_doubt_about_a_shard_nothing_is_given_out_until_it_has_been_looked_after():
    desk = Desk(2)
    desk.dispatcher.open("first")
    desk.ask(FIRST)
    assert desk.ask(FIRST, "first", 0, None) == {}
    assert desk.dispatcher.collect() == []
    desk.dispatcher.resume()
    assert desk.ask(SECOND)["portion"] == 0


def test_a_lost_replica_gives_its_portion_back():
    desk = Desk(2)
    desk.dispatcher.open("first")
    desk.ask(FIRST)
    desk.dispatcher.on_disconnect(FIRST)
    assert desk.ask(SECOND)["portion"] == 0


def test_when_nobody_reports_in_time_the_error_says_who_has_what():
    desk = Desk(2, timeout_s=0.1)
    desk.dispatcher.open("first")
    desk.ask(FIRST)
    with pytest.raises(MethodError, match=r"within 0.1 s, .* \(outstanding: portion 0 by replica 1\)"):
        desk.dispatcher.collect()


def test_after_the_end_everybody_is_told_the_name_of_the_result():
    desk = Desk(1)
    desk.dispatcher.finish("final")
    assert desk.ask(FIRST) == {"over": "final"}


def test_a_failure_of_the_coordinator_is_told():
    desk = Desk(1)
    desk.dispatcher.fail(MethodError("no more"))
    with pytest.raises(RefusedError, match="MethodError: no more"):
        desk.ask(FIRST)


@pytest.mark.parametrize("report", [("first",), ("first", "0", 1.0), ("first", 0, "much")])
def test_what_is_no_report_is_refused(report):
    desk = Desk(1)
    desk.dispatcher.open("first")
    with pytest.raises(MalformedError):
        desk.ask(FIRST, *report)
