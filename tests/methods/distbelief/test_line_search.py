"""The line search on curves with known difficulties, trial by trial beside SciPy's."""

import math
from collections.abc import Callable

import pytest
from scipy.optimize._dcsrch import DCSRCH

from sandtable.methods.server import LineSearch
from sandtable.methods.server.distbelief.line_search import Search

Curve = Callable[[float], tuple[float, float]]


def bowl(t: float) -> tuple[float, float]:
    """Evaluate function 1 of Moré and Thuente's paper: -t / (t² + 2)."""
    return -t / (t * t + 2), (t * t - 2) / (t * t + 2) ** 2


def steep_wall(t: float) -> tuple[float, float]:
    """Evaluate function 2: (t + 0.004)⁵ - 2 (t + 0.004)⁴."""
    u = t + 0.004
    return u**5 - 2 * u**4, 5 * u**4 - 8 * u**3


def kink_with_ripples(t: float) -> tuple[float, float]:
    """Evaluate function 3: a kink at 1, smoothed over 0.01, with ripples of a sine."""
    if t <= 0.99:
        value, slope = 1 - t, -1.0
    elif t >= 1.01:
        value, slope = t - 1, 1.0
    else:
        value, slope = (t - 1) ** 2 / 0.02 + 0.005, (t - 1) / 0.01
    angle = 19.5 * math.pi * t
    return value + 0.99 * math.sin(angle) / angle * t, slope + 0.99 * math.cos(angle)


def two_hills(left: float, right: float) -> Curve:
    """Evaluate functions 4 to 6: flat in the middle, with minima that are hard to hit."""
    weight = [math.sqrt(1 + b * b) - b for b in (left, right)]

    def curve(t: float) -> tuple[float, float]:
        near, far = math.hypot(1 - t, right), math.hypot(t, left)
        return weight[0] * near + weight[1] * far, weight[0] * (t - 1) / near + weight[1] * t / far

    return curve


WIDTH = 1e-10
"""So that only the two conditions end a search, not a narrow bracket."""
CURVES = {
    "bowl": (bowl, LineSearch(decrease=1e-3, curvature=0.1, width=WIDTH)),
    "steep wall": (steep_wall, LineSearch(decrease=0.09, curvature=0.1, width=WIDTH)),
    "kink with ripples": (kink_with_ripples, LineSearch(decrease=0.09, curvature=0.1, width=WIDTH)),
    "two hills, even": (two_hills(0.001, 0.001), LineSearch(decrease=1e-3, curvature=0.0011, width=WIDTH)),
    "two hills, right": (two_hills(0.01, 0.001), LineSearch(decrease=1e-3, curvature=0.0011, width=WIDTH)),
    "two hills, left": (two_hills(0.001, 0.01), LineSearch(decrease=1e-3, curvature=0.0011, width=WIDTH)),
}


@pytest.mark.parametrize("first", [1e-3, 0.1, 10.0, 1e3])
@pytest.mark.parametrize("name", CURVES)
def test_trials_are_scipys_and_the_last_fulfils_both_conditions(name, first):
    curve, settings = CURVES[name]
    loss, slope = curve(1e-12)
    search, ours = Search(settings, step=first, loss=loss, slope=slope), []
    for _ in range(40):
        ours.append(search.step)
        if search.update(*curve(search.step)):
            break
    theirs: list[float] = []

    def value(t: float) -> float:
        theirs.append(t)
        return curve(t)[0]

    reference = DCSRCH(
        value, lambda t: curve(t)[1], settings.decrease, settings.curvature, settings.width, 0.0, settings.max_step
    )
    reference(first, phi0=loss, derphi0=slope, maxiter=40)
    assert ours == pytest.approx(theirs, rel=1e-12, abs=0.0)
    end_loss, end_slope = curve(search.step)
    assert end_loss <= loss + settings.decrease * search.step * slope
    assert abs(end_slope) <= settings.curvature * abs(slope)
