"""Plots of a study: accuracy by epoch and by time, where the time goes, and bytes against accuracy."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandtable.errors import StudyError
from sandtable.study.comparison import ComparisonRow
from sandtable.study.results import StudyRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PLOTS", "draw", "require_matplotlib", "write_plots"]

_COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
    "#7a4f1d",
    "#8a8f98",
    "#9b2d3a",
    "#b8a800",
)
"""Distinguishable to most eyes, on white and on black."""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""When the colours run out, they start again with the next marker."""

_THEMES: Mapping[str, Mapping[str, str]] = {
    "light": {"page": "#ffffff", "ink": "#16202c", "line": "#dfe4ea"},
    "dark": {"page": "#161d27", "ink": "#e8edf3", "line": "#28323f"},
}
_PARTS = (("computing", "#0072b2"), ("communication", "#e69f00"), ("waiting for others, coding", "#9aa5b1"))
_INCHES = (8.0, 5.5)
_DOTS_PER_INCH = 120


def write_plots(rows: Sequence[ComparisonRow], folder: Path) -> list[Path]:
    """Write one PNG per plot."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name in PLOTS:
        file = folder / f"{name}.png"
        file.write_bytes(draw(name, rows, theme="light"))
        files.append(file)
    return files


def draw(name: str, rows: Sequence[ComparisonRow], *, theme: str) -> bytes:
    """Draw one plot as PNG, in the colours of a light or a dark page."""
    matplotlib = require_matplotlib()
    colours = _THEMES[theme]
    style = {
        "font.size": 10,
        "figure.facecolor": colours["page"],
        "axes.facecolor": colours["page"],
        "axes.edgecolor": colours["line"],
        "axes.labelcolor": colours["ink"],
        "axes.titlecolor": colours["ink"],
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": colours["line"],
        "text.color": colours["ink"],
        "xtick.color": colours["ink"],
        "ytick.color": colours["ink"],
        "legend.frameon": False,
        "legend.fontsize": 8,
    }
    with matplotlib.rc_context(style):
        figure = matplotlib.figure.Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
        title, draw_axes = PLOTS[name]
        axes = figure.subplots()
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
        draw_axes(axes, rows)
        _add_legend(figure)
        out = io.BytesIO()
        figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _add_legend(figure: "Figure") -> None:
    """Add a legend below the plot, in as many columns as fit, up to three."""
    for columns in (3, 2, 1):
        legend = figure.legend(loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width < figure.bbox.width:
            return
        legend.remove()


def _by_epoch(axes: "Axes", rows: Sequence[ComparisonRow]) -> None:
    _curves(axes, rows, lambda run: [float(number) for number in range(1, len(run.epochs) + 1)])
    axes.set_xlabel("epoch")
    axes.locator_params(axis="x", integer=True)


def _by_time(axes: "Axes", rows: Sequence[ComparisonRow]) -> None:
    _curves(axes, rows, _ends)
    axes.set_xlabel("seconds of training")


def _curves(axes: "Axes", rows: Sequence[ComparisonRow], along: Callable[[StudyRun], list[float]]) -> None:
    for number, row in enumerate(rows):
        heights = [100 * epoch.accuracy for epoch in row.run.epochs]
        colour, marker = _style(number)
        axes.plot(
            along(row.run), heights, color=colour, label=row.run.name, linewidth=1.6, marker=marker, markersize=3.5
        )
    axes.set_ylabel("accuracy in %")


def _where_time_goes(axes: "Axes", rows: Sequence[ComparisonRow]) -> None:
    names = [row.run.name for row in rows]
    left = [0.0] * len(rows)
    for (label, colour), part in zip(_PARTS, zip(*(_parts(row.run) for row in rows), strict=True), strict=True):
        axes.barh(names, part, left=left, color=colour, label=label)
        left = [start + more for start, more in zip(left, part, strict=True)]
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds of training")


def _bytes_against_accuracy(axes: "Axes", rows: Sequence[ComparisonRow]) -> None:
    for number, row in enumerate(rows):
        colour, marker = _style(number)
        size = 60 if number else 160
        point = (row.run.sent_bytes / 1e6, 100 * row.run.accuracy)
        axes.scatter(*point, s=size, marker=marker if number else "*", color=colour, label=row.run.name, zorder=3)
    if all(row.run.sent_bytes > 0 for row in rows):
        axes.set_xscale("log")
    axes.set_xlabel("MB sent by a worker")
    axes.set_ylabel("accuracy in %")


def _style(number: int) -> tuple[str, str]:
    """Return the colour and the marker of a configuration."""
    rounds, index = divmod(number, len(_COLOURS))
    return _COLOURS[index], _MARKERS[rounds % len(_MARKERS)]


PLOTS: Mapping[str, tuple[str, Callable[["Axes", Sequence[ComparisonRow]], None]]] = {
    "accuracy-by-epoch": ("Accuracy by epoch", _by_epoch),
    "accuracy-by-time": ("Accuracy by time", _by_time),
    "time": ("Where the time goes", _where_time_goes),
    "bytes-against-accuracy": ("Bytes against accuracy", _bytes_against_accuracy),
}
"""By file name: the title, and the function that draws the plot."""


def _ends(run: StudyRun) -> list[float]:
    """Return when each epoch ended."""
    ends, now = [], 0.0
    for epoch in run.epochs:
        now += epoch.seconds
        ends.append(now)
    return ends


def _parts(run: StudyRun) -> tuple[float, float, float]:
    """Return the seconds of computing, of exposed communication, and of the rest; together they are the total."""
    seen = min(run.communication_s, run.exposed_s)
    return run.compute_s, seen, run.exposed_s - seen


def require_matplotlib() -> Any:
    """Import matplotlib; raise StudyError with the remedy if it is missing."""
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError:
        raise StudyError(
            "plots require matplotlib, but it is not installed; install it: pip install 'sandtable[study]'"
        ) from None
    return matplotlib
