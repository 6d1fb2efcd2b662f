"""The page in a real browser: it draws, answers the pointer and the keyboard, and complains about nothing."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.report.browsing import browser
from tests.report.conftest import MISMATCH, SLOW_INPUT, Rehearsal

from sandtable.check import explain, rule_pages
from sandtable.findings import Evidence, Severity
from sandtable.report import Summary
from sandtable.report.page import compare_page, run_page
from sandtable.trace import Line, NoteSummary

EVIL = "<script>alert(1)</script>"

NUM_COLOURS = """
const node = document.querySelector(arguments[0]);
const pixels = node.getContext('2d').getImageData(0, 0, node.width, node.height).data;
const found = new Set();
for (let k = 0; k < pixels.length; k += 4) found.add(pixels[k] << 16 | pixels[k + 1] << 8 | pixels[k + 2]);
return found.size;
"""
POINT = """
const [node, share, height, kind, delta] = [document.querySelector(arguments[0]), ...Array.from(arguments).slice(1)];
node.scrollIntoView({ block: 'center', behavior: 'instant' });
const box = node.getBoundingClientRect();
const at = { clientX: box.left + share * box.width, clientY: box.top + height, bubbles: true, cancelable: true };
const Kind = kind === 'wheel' ? WheelEvent : PointerEvent;
node.dispatchEvent(new Kind(kind, { ...at, deltaY: delta, pointerId: 1 }));
const tip = document.getElementById('tip');
return tip.hidden ? '' : tip.textContent;
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def page(rehearsal: Rehearsal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(run_page(rehearsal.summary, rehearsal.timeline), encoding="utf-8")
    return path


@pytest.fixture
def show(driver: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; at the end, the console must be empty."""

    def go(path: Path, theme: str = "light") -> Any:
        driver.get(f"{path.as_uri()}?theme={theme}")
        assert driver.execute_script("return document.documentElement.dataset.ready") == "yes"
        return driver

    driver.get_log("browser")
    yield go
    assert driver.get_log("browser") == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_chart_is_drawn_in_both_themes(show: Callable[..., Any], page: Path, theme: str) -> None:
    driver = show(page, theme)
    assert driver.execute_script(NUM_COLOURS, "#tracks") > 5
    assert driver.execute_script(NUM_COLOURS, "#heat") > 3
    assert driver.execute_script("return document.querySelectorAll('#memory path[data-category]').length") >= 4
    assert driver.execute_script("return document.querySelectorAll('#time .stack span').length") > 10
    assert driver.execute_script("return document.querySelectorAll('#messages .bins').length") >= 3
    assert len(driver.execute_script("return document.querySelectorAll('.tile')")) == 6
    background = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == (theme == "dark")


def test_the_button_switches_the_theme_and_the_system_decides_at_first(show: Callable[..., Any], page: Path) -> None:
    driver = show(page)
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = driver.execute_script(colour)
    driver.execute_script("document.getElementById('theme').click()")
    assert driver.execute_script(colour) != before
    for scheme in ("dark", "light"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        driver.get(page.as_uri())
        assert driver.execute_script("return document.documentElement.dataset.theme") == scheme


def test_hovering_the_timeline_tells_the_operator_its_time_and_its_line(show: Callable[..., Any], page: Path) -> None:
    driver = show(page)
    found = {driver.execute_script(POINT, "#tracks", share / 20, 32, "pointermove", 0) for share in range(5, 20)}
    text = max(found, key=len)
    assert "takes" in text
    assert "rank 0" in text
    assert ".py:" in text


def test_the_wheel_zooms_dragging_moves_and_keys_do_both(show: Callable[..., Any], page: Path) -> None:
    driver = show(page)

    def shown() -> tuple[int, int]:
        values = driver.execute_script("const d = document.getElementById('tracks').dataset; return [d.from, d.to]")
        return int(values[0]), int(values[1])

    def press(key: str) -> None:
        driver.execute_script(
            "document.getElementById('tracks').dispatchEvent(new KeyboardEvent('keydown', { key: arguments[0] }))", key
        )

    whole = shown()
    driver.execute_script(POINT, "#tracks", 0.6, 40, "wheel", -120)
    near = shown()
    assert whole[0] < near[0] < near[1] < whole[1]
    driver.execute_script("document.getElementById('tracks').setPointerCapture = () => {}")
    driver.execute_script(POINT, "#tracks", 0.6, 40, "pointerdown", 0)
    driver.execute_script(POINT, "#tracks", 0.55, 40, "pointermove", 0)
    driver.execute_script(POINT, "#tracks", 0.55, 40, "pointerup", 0)
    moved = shown()
    assert moved[0] > near[0]
    assert abs((moved[1] - moved[0]) - (near[1] - near[0])) <= 2
    press("ArrowLeft")
    assert shown()[0] < moved[0]
    press("+")
    assert shown()[1] - shown()[0] < moved[1] - moved[0]
    press("0")
    assert shown() == whole


def test_hovering_other_charts_tells_their_figures(show: Callable[..., Any], page: Path) -> None:
    driver = show(page)
    assert "share" in driver.execute_script(POINT, "#time .stack span", 0.5, 5, "pointermove", 0)
    assert "reserved" in driver.execute_script(POINT, "#memory svg", 0.5, 60, "pointermove", 0)
    assert "calls" in driver.execute_script(POINT, "#messages .bins i[style*='%']", 0.5, 2, "pointermove", 0)
    tips = [
        driver.execute_script(POINT, "#heat", x / 40, y, "pointermove", 0) for x in (2, 4, 6) for y in range(60, 120, 6)
    ]
    assert any("GPU" in text and "%" in text for text in tips)


def test_everything_can_be_reached_and_is_labelled(show: Callable[..., Any], page: Path) -> None:
    driver = show(page)
    unlabelled = """const all = 'canvas:not([aria-hidden]), svg.chart, section, .stack, button, select';
        const named = (n) => n.getAttribute('aria-label') || n.textContent.trim();
        return [...document.querySelectorAll(all)].filter((n) => !named(n)).length"""
    assert driver.execute_script(unlabelled) == 0
    assert driver.execute_script("return document.getElementById('tracks').tabIndex") == 0
    targets = driver.execute_script("return [...document.querySelectorAll('nav a')].map((a) => a.getAttribute('href'))")
    assert len(targets) == 6
    assert all(driver.execute_script(f"return !!document.querySelector('{target}')") for target in targets)


def test_nothing_is_wider_than_a_narrow_window(show: Callable[..., Any], page: Path) -> None:
    driver = show(page)
    size = {"width": 480, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 480
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_what_a_script_calls_itself_is_shown_and_never_run(
    show: Callable[..., Any], rehearsal: Rehearsal, tmp_path: Path
) -> None:
    note = NoteSummary(kind=EVIL, text=EVIL, file=EVIL, line=1)
    summary = replace(
        rehearsal.summary,
        command=("sandtable", "run", f"{EVIL}.py"),
        capture=replace(rehearsal.summary.capture, notes=(note,)),
        cluster=replace(rehearsal.summary.cluster, title=EVIL),
    )
    spans = rehearsal.timeline.span_columns(0)
    named = replace(spans, names=tuple(EVIL for _ in spans.names), axes=tuple(EVIL for _ in spans.axes))

    class RenamedTrace:
        lines = tuple(Line(EVIL, 1, EVIL) for _ in rehearsal.trace.lines)

        def __getattr__(self, name: str) -> Any:
            return getattr(rehearsal.trace, name)

    class Renamed:
        """The same timeline, whose names are hostile."""

        trace = RenamedTrace()

        def __getattr__(self, name: str) -> Any:
            return getattr(rehearsal.timeline, name)

        def span_columns(self, rank: int, *, whole_run: bool = False) -> Any:
            return named

    path = tmp_path / "report.html"
    path.write_text(run_page(summary, Renamed()), encoding="utf-8")  # type: ignore[arg-type]
    driver = show(path)
    assert driver.execute_script("return document.querySelector('h1').textContent").startswith("script>")
    assert EVIL in driver.execute_script("return document.getElementById('notes').textContent")
    tips = [driver.execute_script(POINT, "#tracks", share / 20, 32, "pointermove", 0) for share in range(5, 20)]
    assert any(EVIL in text for text in tips)
    assert driver.execute_script("return document.scripts.length") == 2


def test_runs_are_compared_side_by_side(show: Callable[..., Any], rehearsal: Rehearsal, tmp_path: Path) -> None:
    first, timing = rehearsal.summary, rehearsal.summary.require_timing()
    slower = replace(first, timing=replace(timing, step_seconds=2 * timing.step_seconds))
    path = tmp_path / "compare.html"
    path.write_text(compare_page({"base": first, "slow": slower}), encoding="utf-8")
    driver = show(path)
    assert driver.execute_script("return document.querySelectorAll('#time .stack').length") == 2
    figures = driver.execute_script("return document.getElementById('figures').textContent")
    assert "▲ 100 %" in figures
    head = driver.execute_script("return [...document.querySelectorAll('#figures th')].map((n) => n.textContent)")
    assert head == ["", "base", "slow"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_failed_run_shows_findings_source_lines_and_progress(
    show: Callable[..., Any], failed: Summary, tmp_path: Path, theme: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text(run_page(failed, None), encoding="utf-8")
    driver = show(path, theme)
    severities = "return [...document.querySelectorAll('.finding .severity')].map((n) => n.textContent)"
    assert driver.execute_script(severities) == ["error", "warning"], "worst first"
    findings = driver.execute_script("return document.getElementById('findings').textContent")
    assert MISMATCH.message in findings
    assert MISMATCH.remedy in findings
    assert "schedule.step(" in driver.execute_script("return document.querySelector('.excerpt .here').textContent")
    rows = driver.execute_script("return document.querySelectorAll('#progress tbody tr').length")
    assert rows == 2
    text = driver.execute_script("return document.getElementById('progress').textContent")
    assert "2 ranks were not captured" in text
    assert "waits for rank 8" in text
    targets = driver.execute_script("return [...document.querySelectorAll('nav a')].map((a) => a.getAttribute('href'))")
    assert targets == ["#findings", "#progress", "#memory", "#notes"]
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_a_failed_run_of_which_nothing_is_known_has_a_page(
    show: Callable[..., Any], failed: Summary, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text(run_page(replace(failed, findings=(), progress=(), memory=()), None), encoding="utf-8")
    driver = show(path)
    assert "No rank recorded anything" in driver.execute_script("return document.body.textContent")


def test_what_findings_say_is_shown_and_never_run(show: Callable[..., Any], failed: Summary, tmp_path: Path) -> None:
    evidence = (Evidence(ranks=(0,), text=EVIL, file=EVIL, line=1),)
    finding = replace(MISMATCH, rule=EVIL, message=EVIL, remedy=EVIL, evidence=evidence)
    progress = tuple(replace(row, last_call=EVIL, file=EVIL, stop_reason=EVIL) for row in failed.progress)
    path = tmp_path / "report.html"
    path.write_text(run_page(replace(failed, findings=(finding,), progress=progress), None), encoding="utf-8")
    driver = show(path)
    assert driver.execute_script("return document.getElementById('findings').textContent").count(EVIL) == 5
    assert EVIL in driver.execute_script("return document.getElementById('progress').textContent")
    assert driver.execute_script("return document.scripts.length") == 2


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_findings_can_be_filtered_and_explained(
    show: Callable[..., Any], rehearsal: Rehearsal, tmp_path: Path, theme: str
) -> None:
    path = tmp_path / "report.html"
    note = replace(MISMATCH, severity=Severity.NOTE)
    summary = replace(rehearsal.summary, findings=(MISMATCH, SLOW_INPUT, note, note), silenced=(MISMATCH,))
    path.write_text(run_page(summary, rehearsal.timeline), encoding="utf-8")
    driver = show(path, theme)
    shown = """return [...document.querySelectorAll('article.finding')]
        .filter((node) => node.getClientRects().length).map((node) => node.dataset.severity)"""
    press = "document.querySelector(`#findings button[data-severity=${arguments[0]}]`).click()"
    assert driver.execute_script(shown) == ["error", "warning", "note", "note"]
    names = driver.execute_script("return [...document.querySelectorAll('#findings button')].map((n) => n.textContent)")
    assert names == ["1 error", "1 warning", "2 notes"]
    driver.execute_script(press, "note")
    driver.execute_script(press, "error")
    assert driver.execute_script(shown) == ["warning"]
    driver.execute_script(press, "note")
    assert driver.execute_script(shown) == ["warning", "note", "note"]
    explained = driver.execute_script("return [...document.querySelectorAll('.explanation')].map((n) => n.textContent)")
    assert len(explained) == 3, "there is a page about the rule of three of them"
    page = explain(MISMATCH.rule)
    assert page.sentence in explained[0]
    assert "When it is not a mistake" in explained[0]
    code = page.text.split("```python\n")[1].splitlines()[0]
    assert code.strip() in explained[0]
    assert "```" not in explained[0]
    silenced = driver.execute_script("return document.querySelector('.silenced').textContent")
    assert silenced.startswith("1 silenced finding")
    assert MISMATCH.message in silenced
    driver.execute_script("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_every_page_of_a_rule_can_be_shown(show: Callable[..., Any], rehearsal: Rehearsal, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    found = tuple(replace(SLOW_INPUT, rule=rule) for rule in rule_pages())
    path.write_text(run_page(replace(rehearsal.summary, findings=found), rehearsal.timeline), encoding="utf-8")
    driver = show(path)
    texts = driver.execute_script("return [...document.querySelectorAll('.explanation')].map((n) => n.textContent)")
    assert len(texts) == min(len(found), 50)
    for text in texts:
        assert "When it is not a mistake" in text
        assert "`" not in text, text


def test_warnings_are_shown_above_the_figures(show: Callable[..., Any], rehearsal: Rehearsal, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    summary = replace(rehearsal.summary, findings=(SLOW_INPUT,))
    path.write_text(run_page(summary, rehearsal.timeline), encoding="utf-8")
    driver = show(path)
    ids = driver.execute_script("return [...document.querySelectorAll('section')].map((n) => n.id)")
    assert ids[:2] == ["findings", "time"]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_failed_run_can_be_compared(
    show: Callable[..., Any], rehearsal: Rehearsal, failed: Summary, tmp_path: Path, is_first: bool
) -> None:
    runs = {"failed": failed, "ok": rehearsal.summary}
    path = tmp_path / "compare.html"
    path.write_text(compare_page(dict(sorted(runs.items(), reverse=not is_first))), encoding="utf-8")
    driver = show(path)
    assert "the input must keep up" in driver.execute_script("return document.getElementById('time').textContent")
    assert driver.execute_script("return document.querySelectorAll('#time .stack').length") == 1
