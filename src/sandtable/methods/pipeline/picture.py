"""The picture of a schedule: one row per rank, time to the right, passes labelled with their minibatch.

One SVG without a script, in colours that work on a light and on a dark page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Pass", "draw_page", "draw_schedule"]

_WIDTH, _ROW, _BAR = 1200, 34, 26
_LABEL, _RIGHT, _TOP, _FOOT = 190, 12, 40, 34
_CHARACTER = 7.2
"""Width of a digit in the same unit; a number that does not fit into its bar is left out."""

_STYLE = """
  text { fill: #333 } .paper { fill: #fff } .rule { stroke: #ddd } .tick { text-anchor: middle }
  .number { fill: #fff; font-weight: 600; text-anchor: middle }
  .forward { fill: #2f7fd1 } .forward.odd { fill: #1f5fa5 } .backward { fill: #2c9f6b } .backward.odd { fill: #1e7a50 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd } .number { fill: #fff } .paper { fill: #16181d } .rule { stroke: #333 }
  }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A forward or backward pass of one minibatch through one stage, on one rank."""

    rank: int
    stage: int
    minibatch: int
    is_forward: bool
    version: int
    """How many updates its weights had seen."""
    start_s: float
    end_s: float


def draw_schedule(passes: Sequence[Pass], rows: Sequence[str]) -> str:
    """Return an SVG; `rows` are the names of the ranks."""
    height = _TOP + _ROW * len(rows) + _FOOT
    start = min((one_pass.start_s for one_pass in passes), default=0.0)
    end = max((one_pass.end_s for one_pass in passes), default=1.0)
    scale = (_WIDTH - _LABEL - _RIGHT) / max(end - start, 1e-9)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'role="img" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{len(passes)} passes on {len(rows)} ranks in {_time(end - start)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{height}"/>',
        *_legend(),
        *_axis(end - start, scale, len(rows)),
    ]
    for rank, name in enumerate(rows):
        parts.append(f'<text x="8" y="{_TOP + _ROW * rank + _ROW / 2 + 4:g}">{escape(name)}</text>')
    for one_pass in sorted(passes, key=lambda one_pass: one_pass.start_s):
        parts += _bar(
            one_pass, x=_LABEL + (one_pass.start_s - start) * scale, width=(one_pass.end_s - one_pass.start_s) * scale
        )
    return "\n".join([*parts, "</svg>\n"])


def draw_page(passes: Sequence[Pass], rows: Sequence[str]) -> str:
    """Return an HTML page with the picture, as wide as the window."""
    picture = draw_schedule(passes, rows).replace(f' width="{_WIDTH}"', ' style="width:100%;height:auto"', 1)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>Pipeline</title>\n'
        '<meta name="viewport" content="width=device-width">\n'
        "<style>:root { color-scheme: light dark } body { margin: 1rem }</style>\n"
        f"<body>\n{picture}</body>\n</html>\n"
    )


def _bar(one_pass: Pass, *, x: float, width: float) -> list[str]:
    kind, word = ("forward", "Forward") if one_pass.is_forward else ("backward", "Backward")
    y = _TOP + _ROW * one_pass.rank + (_ROW - _BAR) / 2
    shade = " odd" if one_pass.minibatch % 2 else ""
    about = (
        f"{word} pass of minibatch {one_pass.minibatch}, stage {one_pass.stage}, weights of version "
        f"{one_pass.version}, {_time(one_pass.end_s - one_pass.start_s)}"
    )
    parts = [
        f'<rect class="{kind}{shade}" x="{x:.1f}" y="{y:g}" width="{max(width - 0.6, 0.6):.1f}" height="{_BAR}" rx="2">'
        f"<title>{about}</title></rect>"
    ]
    if width > _CHARACTER * len(str(one_pass.minibatch)) + 3:
        middle = y + _BAR / 2 + 4
        parts.append(f'<text class="number" x="{x + width / 2:.1f}" y="{middle:g}">{one_pass.minibatch}</text>')
    return parts


def _legend() -> list[str]:
    parts = []
    for x, kind, words in ((_LABEL, "forward", "forward pass"), (_LABEL + 130, "backward", "backward pass")):
        parts.append(f'<rect class="{kind}" x="{x}" y="10" width="16" height="16" rx="2"/>')
        parts.append(f'<text x="{x + 24}" y="22">{words}</text>')
    parts.append(f'<text x="{_LABEL + 270}" y="22">the number is the minibatch</text>')
    return parts


def _axis(seconds: float, scale: float, num_rows: int) -> list[str]:
    """Draw lines at round times."""
    step = _round_step(seconds / 8)
    bottom = _TOP + _ROW * num_rows
    parts = []
    for number in range(int(seconds / step) + 1):
        x = _LABEL + number * step * scale
        parts.append(f'<line class="rule" x1="{x:.1f}" y1="{_TOP - 4}" x2="{x:.1f}" y2="{bottom + 4}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 20}">{_time(number * step)}</text>')
    return parts


def _round_step(at_least: float) -> float:
    step = 1e-6
    while step * 10 < at_least:
        step *= 10
    return next(step * factor for factor in (1, 2, 5, 10) if step * factor >= at_least or factor == 10)


def _time(seconds: float) -> str:
    if seconds == 0:
        return "0"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
