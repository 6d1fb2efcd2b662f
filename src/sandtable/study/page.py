"""The page `study.html`: one self-contained file that follows the reader's light or dark theme.

It runs no script. It contains every plot twice, and the browser shows the one for its colour scheme. Text from settings
files is escaped.
"""

import base64
import html
import json
from collections.abc import Sequence
from importlib import resources

from sandtable.study.comparison import ComparisonRow
from sandtable.study.plots import PLOTS, draw
from sandtable.study.settings import StudySettings
from sandtable.study.table import COLUMNS, cells, headline

__all__ = ["study_page"]


def study_page(rows: Sequence[ComparisonRow], settings: StudySettings, *, command: str) -> str:
    """Return the whole page."""
    parts = {
        "title": "Methods compared – sandtable",
        "headline": headline(settings),
        "command": command,
        "settings": json.dumps(settings.model_dump(mode="json"), indent=1),
    }
    values = {name: html.escape(text) for name, text in parts.items()}
    values |= {"table": _table(rows), "meanings": _meanings(), "plots": _plots(rows), "style": _part("style.css")}
    page = _part("page.html")
    for name, text in values.items():
        page = page.replace("{{" + name + "}}", text)
    return page


def _table(rows: Sequence[ComparisonRow]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name, _ in COLUMNS)
    lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in cells(row)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _meanings() -> str:
    return "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(meaning)}</dd>" for name, meaning in COLUMNS[1:])


def _plots(rows: Sequence[ComparisonRow]) -> str:
    return "".join(_plot(name, title, rows) for name, (title, _) in PLOTS.items())


def _plot(name: str, title: str, rows: Sequence[ComparisonRow]) -> str:
    light, dark = (_data_url(draw(name, rows, theme=theme)) for theme in ("light", "dark"))
    return (
        f'<section class="plot" id="{name}"><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{html.escape(title)}"></picture></section>'
    )


def _data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _part(name: str) -> str:
    return (resources.files("sandtable.study") / "page" / name).read_text(encoding="utf-8")
