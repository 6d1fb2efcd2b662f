"""Page: `report.html`, one self-contained file.

The parts in `page/` (markup, style, scripts) become one document together with the data as JSON. No name of a script,
a group or a file can become markup: the title is escaped, data cannot close its element, and the page's own scripts
write text as text only. A content security policy with the hashes of exactly this style and these scripts forbids
everything else, the network included.
"""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import resources
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from sandtable.check.rule_pages import rule_pages
from sandtable.engine.memory import Category, classify_blocks, memory_curve
from sandtable.engine.timeline import Timeline
from sandtable.report.picture import draw_picture
from sandtable.report.shown_ranks import choose_ranks
from sandtable.report.source_lines import quote_lines
from sandtable.report.summary import Summary
from sandtable.report.times import parts_of
from sandtable.report.tracks import tracks_of
from sandtable.trace import format_ranks

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["compare_page", "run_page"]

_SCRIPTS = ("dom", "bars", "timeline", "memory", "heatmap", "messages", "pages", "findings", "run", "compare", "main")
MAX_CURVES = 8
MAX_POINTS = 500
MAX_CLASSES = 24

Item = TypeVar("Item")


def run_page(summary: Summary, timeline: Timeline | None, *, ranks: Sequence[int] = ()) -> str:
    """Return the page of one run.

    It shows the timeline of `ranks`, by default of a few that differ. Without a timeline, it shows the findings
    and how far each rank got.
    """
    if (timeline is None) != (summary.timing is None):
        raise ValueError("a page must be given the timeline that its summary was computed from")
    title = script_name(summary.command)
    data = {
        "kind": "run",
        "title": title,
        "summary": summary.to_dict(),
        "sources": quote_lines(_places(summary)),
        "pages": _pages(summary),
        "charts": None if timeline is None else _charts(summary, timeline, ranks),
    }
    return render(f"{title} – sandtable", data)


def compare_page(summaries: Mapping[str, Summary]) -> str:
    """Return the page that compares several runs, given by name; the first is the baseline."""
    title = f"{len(summaries)} runs compared"
    runs = [{"name": name, "summary": summary.to_dict()} for name, summary in summaries.items()]
    return render(f"{title} – sandtable", {"kind": "compare", "title": title, "runs": runs})


def render(title: str, data: Mapping[str, object]) -> str:
    """Return the document with this data in it."""
    style = _part("style.css")
    script = "\n".join(['"use strict";', "(() => {", *(_part(f"{name}.js") for name in _SCRIPTS), "})();"])
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy, quote=True),
        "title": html.escape(title),
        "style": style,
        "data": embed(data),
        "script": script,
    }
    pieces = _part("page.html").split("{{")
    return pieces[0] + "".join(_filled(piece, parts) for piece in pieces[1:])


def embed(data: Mapping[str, object]) -> str:
    """Return JSON that stays data in a <script> element: no character can end the element or begin a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True, default=_by_field)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _by_field(value: "DataclassInstance") -> dict[str, object]:
    """Return the fields of a dataclass as JSON keys."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def script_name(command: Sequence[str]) -> str:
    """Return the training script of a command line: the first word that looks like one."""
    named = [word for word in command[1:] if word.endswith(".py")] or list(command[:1])
    return named[0].rsplit("/", 1)[-1] if named else "a run"


def _filled(piece: str, parts: Mapping[str, str]) -> str:
    name, _, rest = piece.partition("}}")
    return parts[name] + rest


def _part(name: str) -> str:
    return resources.files("sandtable.report").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _charts(summary: Summary, timeline: Timeline, ranks: Sequence[int]) -> dict[str, object]:
    """Return what is drawn beside the figures."""
    slowest = summary.require_timing().breakdown.slowest.rank
    shown = choose_ranks(timeline, slowest=slowest, wanted=ranks)
    return {
        "step_ns": timeline.step_ns,
        "classes": _classes(timeline),
        "tracks": tracks_of(timeline, shown),
        "memory": [_curve(timeline, rank) for rank in _few(shown, MAX_CURVES)],
        "picture": draw_picture(timeline),
    }


def _places(summary: Summary) -> list[tuple[str, int]]:
    """Return the script lines that the findings and the progress of the ranks point at."""
    evidence = [(item.file, item.line) for finding in summary.findings for item in finding.evidence]
    return evidence + [(row.file, row.line) for row in summary.progress if summary.timing is None]


def _pages(summary: Summary) -> dict[str, str]:
    """Return the pages of the rules that found something."""
    known = rule_pages()
    return {finding.rule: known[finding.rule].text for finding in summary.findings if finding.rule in known}


def _classes(timeline: Timeline) -> list[dict[str, object]]:
    """Return where the step goes on ranks of each actor."""
    return [
        {
            "ranks": format_ranks(tuple(actor.ranks), max_ranges=2),
            "num_ranks": len(actor.ranks),
            "parts": parts_of(timeline.breakdown(actor.representative)),
        }
        for actor in _few(timeline.actors, MAX_CLASSES)
    ]


def _curve(timeline: Timeline, rank: int) -> dict[str, object]:
    """Return the memory of a rank over the step: categories as rows, moments as columns."""
    view = timeline.trace.rank(rank)
    rows, moments = timeline.record_times(rank)
    before = min(int(np.searchsorted(moments, timeline.step_start_ns)), len(rows) - 1)
    begin = int(rows[before]) if len(rows) else 0
    end = view.step_slice(timeline.step_number).stop
    curve = memory_curve(view, classify_blocks(view), rows=slice(begin, end), max_points=MAX_POINTS)
    time = np.interp(curve.row, rows, moments) - timeline.step_start_ns if len(rows) else curve.row * 0.0
    held = curve.bytes_by_category
    time = np.append(np.maximum.accumulate(np.clip(time, 0, timeline.step_ns)), timeline.step_ns)
    time[0] = 0  # what is held when the step begins
    return {
        "rank": rank,
        "capacity": view.memory.capacity_bytes,
        "time": np.rint(time).astype(np.int64).tolist(),
        "bytes": [[*held[:, category].tolist(), int(held[-1, category])] for category in Category],
        "reserved": [*curve.reserved_bytes.tolist(), int(curve.reserved_bytes[-1])],
    }


def _few(items: Sequence[Item], most: int) -> list[Item]:
    if len(items) <= most:
        return list(items)
    return [items[int(index)] for index in np.linspace(0, len(items) - 1, most)]
