"""Page: `study.html`, one file that needs nothing else, light or dark as the reader's screen is.

It runs no script. Every plot is in it twice, and the browser takes the one for its colours; whatever came from a
settings file is escaped.
"""

import base64
import html
import json
from collections.abc import Sequence
from importlib import resources

from sandtable.study.comparison import Row
from sandtable.study.plots import PLOTS, draw
from sandtable.study.settings import StudySettings
from sandtable.study.table import COLUMNS, cells, headline

__all__ = ["study_page"]


def study_page(rows: Sequence[Row], settings: StudySettings, *, command: str) -> str:
    """The whole page."""
    parts = {
        "title": "Methods compared – sandtable",
        "headline": headline(settings),
        "command": command,
        "settings": json.dumps(settings.model_dump(mode="json"), indent=1),
    }
    made = {name: html.escape(text) for name, text in parts.items()}
    made |= {"table": _table(rows), "meanings": _meanings(), "plots": _plots(rows), "style": _part("style.css")}
    page = _part("page.html")
    for name, text in made.items():
        page = page.replace("{{" + name + "}}", text)
    return page


def _table(rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name, _ in COLUMNS)
    lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in cells(row)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _meanings() -> str:
    return "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(meaning)}</dd>" for name, meaning in COLUMNS[1:])


def _plots(rows: Sequence[Row]) -> str:
    return "".join(_plot(name, title, rows) for name, (title, _) in PLOTS.items())


def _plot(name: str, title: str, rows: Sequence[Row]) -> str:
    light, dark = (_data_url(draw(name, rows, theme=theme)) for theme in ("light", "dark"))
    return (
        f'<section class="plot" id="{name}"><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{html.escape(title)}"></picture></section>'
    )


def _data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _part(name: str) -> str:
    return (resources.files("sandtable.study") / "page" / name).read_text(encoding="utf-8")
