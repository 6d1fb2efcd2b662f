"""Scatter: predicted against measured, every row a point, as an SVG that follows light and dark pages."""

import math
from html import escape

from sandtable.validation.run import Report
from sandtable.validation.scores import Outcome

__all__ = ["scatter_svg"]

_SIZE, _MARGIN = 640, 64
_COLOURS = (
    "#2f6fb2",
    "#c4572b",
    "#3f8f4f",
    "#8a4fa3",
    "#b08a1e",
    "#4a9aa5",
    "#a33f5f",
    "#6b7280",
    "#5b7f2b",
    "#7a5c3a",
)


def scatter_svg(report: Report) -> str:
    """Step times of all scores that are times, in seconds, on logarithmic axes."""
    series = [
        (
            each.name,
            [(_seconds(o, each.quantity, o.measured), _seconds(o, each.quantity, o.predicted), o) for o in rows],
        )
        for each in report.scores
        if each.quantity in _SCALES and (rows := each.outcomes)
    ]
    values = [value for _, points in series for point in points for value in point[:2]]
    low, high = (_decade(min(values, default=1.0), -1), _decade(max(values, default=10.0), 1))
    scale = (_SIZE - 2 * _MARGIN) / (high - low)

    def place(value: float) -> float:
        return (math.log10(value) - low) * scale

    parts = [_frame(low, high, scale)]
    for k, (name, points) in enumerate(series):
        colour = _COLOURS[k % len(_COLOURS)]
        parts += [
            f'<circle cx="{_MARGIN + place(x):.1f}" cy="{_SIZE - _MARGIN - place(y):.1f}" r="3.2" fill="{colour}" '
            f'fill-opacity="{0.75 if o.counts else 0.25}"><title>{escape(o.row.id)}: predicted {y:.4g} s, measured '
            f"{x:.4g} s ({o.error_pct:+.1f} %)</title></circle>"
            for x, y, o in points
        ]
        parts.append(
            f'<circle cx="{_MARGIN + 14}" cy="{_MARGIN + 16 + 18 * k}" r="4" fill="{colour}"/>'
            f'<text x="{_MARGIN + 24}" y="{_MARGIN + 20 + 18 * k}">{escape(name)}</text>'
        )
    style = "<style>svg{color:#222}@media(prefers-color-scheme:dark){svg{color:#ddd}}text{font:12px sans-serif;fill:currentColor}</style>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE} {_SIZE}" role="img" aria-label="predicted against measured step time">'
    return "\n".join([head, style, *parts, "</svg>", ""])


_SCALES = {"step_s": 1.0, "step_ms": 1e-3, "samples_per_gpu_s": 0.0, "samples_per_s": 0.0, "tokens_per_gpu_s": 0.0}


def _seconds(outcome: Outcome, quantity: str, value: float) -> float:
    """A rate stands for the time in which that share of the predicted step's work is done."""
    if _SCALES[quantity]:
        return value * _SCALES[quantity]
    return outcome.prediction.step_ns / 1e9 * outcome.predicted / value


def _decade(value: float, step: int) -> float:
    return (math.floor if step < 0 else math.ceil)(math.log10(value) * 2) / 2


def _frame(low: float, high: float, scale: float) -> str:
    end = _SIZE - _MARGIN
    lines = [f'<g stroke="currentColor" fill="none"><path d="M{_MARGIN} {_MARGIN}V{end}H{end}" stroke-opacity=".6"/>']
    lines.append(f'<path d="M{_MARGIN} {end}L{end} {_MARGIN}" stroke-opacity=".8"/>')
    for factor in (1.1, 1 / 1.1):
        shift = math.log10(factor) * scale
        lines.append(
            f'<path d="M{_MARGIN} {end - shift:.1f}L{end} {_MARGIN - shift:.1f}" stroke-opacity=".35" stroke-dasharray="4 4"/>'
        )
    lines.append("</g>")
    for power in range(math.ceil(low), math.floor(high) + 1):
        at = (power - low) * scale
        label = f"{10.0**power:g} s"
        lines.append(f'<text x="{_MARGIN + at:.1f}" y="{end + 18}" text-anchor="middle">{label}</text>')
        lines.append(f'<text x="{_MARGIN - 8}" y="{end - at + 4:.1f}" text-anchor="end">{label}</text>')
    lines.append(f'<text x="{_SIZE / 2}" y="{_SIZE - 16}" text-anchor="middle">measured (dashed: 10 % off)</text>')
    lines.append(
        f'<text x="18" y="{_SIZE / 2}" text-anchor="middle" transform="rotate(-90 18 {_SIZE / 2})">predicted</text>'
    )
    return "\n".join(lines)
