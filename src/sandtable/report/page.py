"""Page: `report.html`, one file that needs nothing else.

The parts in `page/` (markup, style, scripts) are put into one document together with the data as JSON. Nothing of what
a script, a group or a file is called can become markup: the title is escaped, data cannot close its element, and the
page's own scripts write text as text only. A content policy with the hashes of exactly this style and these scripts
forbids everything else, the network included.
"""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

from sandtable.engine.memory import Category, classify_blocks, memory_curve
from sandtable.report.chosen import choose_ranks
from sandtable.report.lanes import lanes_of
from sandtable.report.needs import Timeline
from sandtable.report.picture import draw_picture
from sandtable.report.summary import RunSummary
from sandtable.report.times import parts_of
from sandtable.trace import Trace, format_ranks

__all__ = ["compare_page", "run_page"]

_SCRIPTS = ("dom", "bars", "timeline", "memory", "heatmap", "messages", "run", "compare", "main")
MAX_CURVES = 8
MAX_POINTS = 500
MAX_CLASSES = 24


def run_page(trace: Trace, timeline: Timeline, summary: RunSummary, *, ranks: Sequence[int] = ()) -> str:
    """The page of one run, with the timeline of `ranks` or of those worth looking at."""
    chosen = choose_ranks(trace, timeline, slowest=summary.breakdown["slowest"].rank, asked=ranks)
    title = script_name(summary.command)
    data = {
        "kind": "run",
        "title": title,
        "step_ns": timeline.step_ns,
        "summary": summary.to_dict(),
        "classes": _classes(timeline),
        "lanes": lanes_of(timeline, chosen).to_dict(),
        "memory": [_curve(trace, timeline, rank) for rank in _few(chosen, MAX_CURVES)],
        "picture": draw_picture(timeline).to_dict(),
    }
    return render(f"{title} – sandtable", data)


def compare_page(summaries: Mapping[str, dict[str, Any]]) -> str:
    """The page of several runs, given as the content of their `summary.json` by name; the first is the yardstick."""
    title = f"{len(summaries)} runs compared"
    runs = [{"name": name, "summary": summary} for name, summary in summaries.items()]
    return render(f"{title} – sandtable", {"kind": "compare", "title": title, "runs": runs})


def render(title: str, data: Mapping[str, Any]) -> str:
    """The document with this data in it."""
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


def embed(data: Mapping[str, Any]) -> str:
    """JSON that stays data inside a <script> element: no character in it can end the element or begin a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def script_name(command: Sequence[str]) -> str:
    """The training script of a command line: the first word that looks like one."""
    named = [word for word in command[1:] if word.endswith(".py")] or list(command[:1])
    return named[0].rsplit("/", 1)[-1] if named else "a run"


def _filled(piece: str, parts: Mapping[str, str]) -> str:
    name, _, rest = piece.partition("}}")
    return parts[name] + rest


def _part(name: str) -> str:
    return resources.files("sandtable.report").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _classes(timeline: Timeline) -> list[dict[str, Any]]:
    """Where the step goes on ranks of each kind."""
    return [
        {
            "ranks": format_ranks(tuple(actor.ranks), max_ranges=2),
            "num_ranks": len(actor.ranks),
            "parts": parts_of(timeline.breakdown(actor.representative)).to_dict(),
        }
        for actor in _few(timeline.actors, MAX_CLASSES)
    ]


def _curve(trace: Trace, timeline: Timeline, rank: int) -> dict[str, Any]:
    """Memory of a rank over the step: categories as rows, moments as columns."""
    view = trace.rank(rank)
    rows, moments = timeline.record_times(rank)
    steps = view.step_slices()
    before = min(int(np.searchsorted(moments, timeline.step_start_ns)), len(rows) - 1)
    begin = int(rows[before]) if len(rows) else 0
    end = steps[-1].stop if steps else len(view.records)
    curve = memory_curve(view, classify_blocks(view), rows=slice(begin, end), max_points=MAX_POINTS)
    time = np.interp(curve.row, rows, moments) - timeline.step_start_ns if len(rows) else curve.row * 0.0
    held = curve.bytes_by_category
    time = np.append(np.maximum.accumulate(np.clip(time, 0, timeline.step_ns)), timeline.step_ns)
    return {
        "rank": rank,
        "capacity": view.memory.capacity_bytes,
        "time": np.rint(time).astype(np.int64).tolist(),
        "bytes": [[*held[:, each].tolist(), int(held[-1, each])] for each in Category],
        "reserved": [*curve.reserved_bytes.tolist(), int(curve.reserved_bytes[-1])],
    }


def _few(items: Sequence[Any], most: int) -> list[Any]:
    if len(items) <= most:
        return list(items)
    return [items[int(k)] for k in np.linspace(0, len(items) - 1, most)]
