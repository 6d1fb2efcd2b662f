"""Scatter plot: predicted against measured, one point per row, as an SVG that follows light and dark pages."""

import math
from collections.abc import Callable
from html import escape
from types import MappingProxyType

from sandtable.validation.scores import RowOutcome, Score, ValidationReport

__all__ = ["scatter_svg"]

Point = tuple[float, float, RowOutcome]
"""Measured and predicted seconds, and the row."""

_SIZE, _MARGIN = 640, 64
_GOLDEN_ANGLE = 137.5
"""Degrees between the hues of two series: even many hues stay apart."""
_SECONDS = MappingProxyType({"step_s": 1.0, "step_ms": 1e-3})
_RATES = frozenset({"samples_per_s", "samples_per_gpu_s", "tokens_per_gpu_s"})
_HEAD = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE} {_SIZE}" role="img" '
    'aria-label="predicted against measured step time">'
)
_STYLE = (
    "<style>svg{color:#222}@media(prefers-color-scheme:dark){svg{color:#ddd}}"
    "text{font:12px sans-serif;fill:currentColor}</style>"
)


def scatter_svg(report: ValidationReport) -> str:
    """Draw the step times of all scores that are times or rates, in seconds, on logarithmic axes."""
    series = [(score.name, points) for score in report.scores if (points := _points(score))]
    values = [value for _, points in series for point in points for value in point[:2]]
    low, high = _half_decade(min(values, default=1.0), math.floor), _half_decade(max(values, default=10.0), math.ceil)
    scale = (_SIZE - 2 * _MARGIN) / max(high - low, 0.5)
    parts = [_frame(low, high, scale)]
    for index, (name, points) in enumerate(series):
        colour = f"hsl({(210 + index * _GOLDEN_ANGLE) % 360:.0f} 55% 48%)"
        parts += [_dot(point, colour=colour, low=low, scale=scale) for point in points]
        parts.append(
            f'<circle cx="{_MARGIN + 14}" cy="{_MARGIN + 16 + 18 * index}" r="4" fill="{colour}"/>'
            f'<text x="{_MARGIN + 24}" y="{_MARGIN + 20 + 18 * index}">{escape(name)}</text>'
        )
    return "\n".join([_HEAD, _STYLE, *parts, "</svg>", ""])


def _points(score: Score) -> list[Point]:
    """Return the points of a score; a rate becomes the time that the same work takes at that rate."""
    points = []
    for outcome in score.outcomes:
        if score.quantity in _SECONDS:
            unit = _SECONDS[score.quantity]
            points.append((outcome.measured * unit, outcome.predicted * unit, outcome))
        elif score.quantity in _RATES:
            predicted = outcome.prediction.step_ns / 1e9
            points.append((predicted * outcome.predicted / outcome.measured, predicted, outcome))
    return points


def _dot(point: Point, *, colour: str, low: float, scale: float) -> str:
    measured, predicted, outcome = point
    x = _MARGIN + (math.log10(measured) - low) * scale
    y = _SIZE - _MARGIN - (math.log10(predicted) - low) * scale
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}" fill-opacity="{0.75 if outcome.counts else 0.25}">'
        f"<title>{escape(outcome.row.id)}: predicted {predicted:.4g} s, measured {measured:.4g} s "
        f"({outcome.error_pct:+.1f} %)</title></circle>"
    )


def _half_decade(value: float, round_off: Callable[[float], int]) -> float:
    return round_off(math.log10(value) * 2) / 2


def _frame(low: float, high: float, scale: float) -> str:
    end = _SIZE - _MARGIN
    lines = [f'<g stroke="currentColor" fill="none"><path d="M{_MARGIN} {_MARGIN}V{end}H{end}" stroke-opacity=".6"/>']
    lines.append(f'<path d="M{_MARGIN} {end}L{end} {_MARGIN}" stroke-opacity=".8"/>')
    for factor in (1.1, 1 / 1.1):
        shift = math.log10(factor) * scale
        ends = f"M{_MARGIN} {end - shift:.1f}L{end} {_MARGIN - shift:.1f}"
        lines.append(f'<path d="{ends}" stroke-opacity=".35" stroke-dasharray="4 4"/>')
    lines.append("</g>")
    for power in range(math.ceil(low), math.floor(high) + 1):
        at = (power - low) * scale
        label = f"{10.0**power:g} s"
        lines.append(f'<text x="{_MARGIN + at:.1f}" y="{end + 18}" text-anchor="middle">{label}</text>')
        lines.append(f'<text x="{_MARGIN - 8}" y="{end - at + 4:.1f}" text-anchor="end">{label}</text>')
    middle = _SIZE / 2
    lines.append(f'<text x="{middle}" y="{_SIZE - 16}" text-anchor="middle">measured (dashed: 10 % off)</text>')
    lines.append(f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">predicted</text>')
    return "\n".join(lines)
