"""The terminal shows what ranks print, on the streams they print to, and a progress bar on a terminal."""

import io

from sandtable.events import Noticed, RankCaptured, RankPrinted, RankStarted
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
