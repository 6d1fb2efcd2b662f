"""The page as a document: complete in itself, small, and deaf to what names try to say."""

import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from tests.report.conftest import Rehearsal

from sandtable.report.page import compare_page, render, run_page, script_name

EVIL = "<script>alert(1)</script>"


class Elements(HTMLParser):
    """Counts elements, and keeps what addresses they name."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    plain: dict[str, Any] = json.loads(found[1])
    return plain


def test_nothing_is_loaded_from_elsewhere(rehearsal: Rehearsal) -> None:
    page = run_page(rehearsal.summary, rehearsal.timeline)
    assert all(address.startswith(("#", "data:")) for address in Elements(page).addresses)
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])  # type: ignore[index]
    assert policy.startswith("default-src 'none';")
    assert "unsafe-inline" not in policy


def test_data_holds_the_summary_and_all_charts(rehearsal: Rehearsal) -> None:
    data = data_of(run_page(rehearsal.summary, rehearsal.timeline))
    assert data["summary"] == json.loads(json.dumps(rehearsal.summary.to_dict()))
    charts = data["charts"]
    assert len(charts["tracks"]["ranks"]) == len(charts["memory"]) == len(charts["classes"]) == 2
    for curve in charts["memory"]:
        assert curve["time"] == sorted(curve["time"])
        assert (curve["time"][0], curve["time"][-1]) == (0, rehearsal.timeline.step_ns)
        assert {len(column) for column in [*curve["bytes"], curve["reserved"], curve["time"]]} == {len(curve["time"])}


def test_names_cannot_become_markup(rehearsal: Rehearsal) -> None:
    summary = replace(rehearsal.summary, command=("sandtable", "run", f"{EVIL}.py", "--x", "]]> --> </script>"))
    clean = Elements(run_page(rehearsal.summary, rehearsal.timeline)).tags
    page = run_page(summary, rehearsal.timeline)
    assert Elements(page).tags == clean, "no element more than without it"
    assert EVIL not in page
    assert data_of(page)["summary"]["command"][2] == f"{EVIL}.py"


def test_titles_are_escaped() -> None:
    page = render(EVIL, {"kind": "run", "title": EVIL})
    assert EVIL not in page
    assert "<title>&lt;script&gt;" in page


def test_placeholders_in_data_are_left_alone() -> None:
    assert data_of(render("{{script}}", {"title": "{{data}} {{"}))["title"] == "{{data}} {{"


def test_several_runs_are_on_one_page(rehearsal: Rehearsal) -> None:
    summary = rehearsal.summary
    data = data_of(compare_page({"a": summary, EVIL: summary}))
    assert [run["name"] for run in data["runs"]] == ["a", EVIL]


def test_the_page_names_the_script() -> None:
    assert script_name(("sandtable", "run", "--cluster", "x.toml", "dir/train.py", "--y.py")) == "train.py"
    assert script_name(("sandtable", "run", "-m", "mine.train")) == "sandtable"
    assert script_name(()) == "a run"
