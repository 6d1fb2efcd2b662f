"""The listener shows what ranks print, on the streams they print to, and how far the rehearsal is."""

import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sandtable.events import (
    CaptureEnded,
    Event,
    Finished,
    Noticed,
    Preparing,
    Priced,
    RankCaptured,
    RankPrinted,
    RankStarted,
    RankStepped,
    Started,
)
from sandtable.report.progress import TerminalListener


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_go_to_the_stream_they_were_printed_to_with_their_rank():
    out, err = io.StringIO(), io.StringIO()
    with TerminalListener(out, err) as listen:
        listen(RankStarted(rank=3))
        listen(RankPrinted(rank=3, text="loss 1.0"))
        listen(RankPrinted(rank=3, text="a warning", is_error=True))
        listen(Noticed(text="starting again"))
        listen(RankCaptured(rank=3))
    assert out.getvalue() == "[rank 3] loss 1.0\n"
    assert err.getvalue() == "[rank 3] a warning\nstarting again\n"


def test_a_terminal_shows_how_many_ranks_are_captured():
    err = Terminal()
    with TerminalListener(io.StringIO(), err) as listen:
        for rank in range(2):
            listen(RankStarted(rank=rank))
        listen(RankCaptured(rank=0))
        listen(RankPrinted(rank=0, text="above the bar", is_error=True))
    assert "ranks captured" in err.getvalue()
    assert "[rank 0] above the bar" in err.getvalue()


def test_a_pipe_gets_a_line_at_the_beginning_and_then_one_at_every_interval():
    with listening_on_pipe() as pipe:
        pipe.show(Started(command=("train.py", "--lr", "1"), world_size=8))
        assert pipe.next_line() == "sandtable: rehearsing on 8 ranks: train.py --lr 1\n"
        pipe.show(Preparing(text="loading torch"))
        assert pipe.wait_for("loading torch") == "sandtable: 0 s, loading torch\n"
        pipe.show(RankStarted(rank=0), RankStarted(rank=1), RankCaptured(rank=0))
        pipe.wait_for("1 of 2 started ranks captured; no step has ended yet")
        pipe.show(RankStepped(rank=1, num_steps=2))
        pipe.wait_for("1 of 2 started ranks captured; rank 1 has ended step 2")
        pipe.show(CaptureEnded())
        pipe.wait_for("computing the time of the run")
        pipe.show(Priced(step_seconds=1.0))
        pipe.wait_for("writing the report")


def test_a_pipe_gets_no_line_before_the_beginning_or_after_the_end():
    err = io.StringIO()
    with TerminalListener(io.StringIO(), err, interval_seconds=0.01) as listen:
        time.sleep(0.1)
        assert err.getvalue() == ""
        listen(Started(command=("train.py",), world_size=1))
        listen(Finished())
        before = err.getvalue()
        time.sleep(0.1)
        assert err.getvalue() == before == "sandtable: rehearsing on 1 rank: train.py\n"


def test_a_terminal_shows_what_is_being_prepared_instead_of_a_line_now_and_then():
    err = Terminal()
    with TerminalListener(io.StringIO(), err, interval_seconds=0.01) as listen:
        listen(Started(command=("train.py",), world_size=1))
        listen(Preparing(text="building the virtual GPU"))
        time.sleep(0.1)
    assert "building the virtual GPU" in err.getvalue()
    assert "rehearsing" not in err.getvalue()


@dataclass
class Pipe:
    """A pipe as standard error, and what was written to it."""

    listen: TerminalListener
    lines: Iterator[str]

    def show(self, *events: Event) -> None:
        for event in events:
            self.listen(event)

    def next_line(self) -> str:
        return next(self.lines)

    def wait_for(self, text: str) -> str:
        """Returns the first line that ends with the text; others may come before it."""
        return next(line for line in self.lines if line.endswith(f"{text}\n"))


@contextmanager
def listening_on_pipe() -> Iterator[Pipe]:
    reading, writing = os.pipe()
    with (
        open(reading) as lines,
        open(writing, "w") as err,
        TerminalListener(io.StringIO(), err, interval_seconds=0.02) as listen,
    ):
        yield Pipe(listen, lines)
