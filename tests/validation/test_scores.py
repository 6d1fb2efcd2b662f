"""Errors and rankings, on made-up figures."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandtable.errors import ValidationSetError
from sandtable.validation import PublishedRow, RowSet, ValidationReport, fill_page, scatter_svg
from sandtable.validation.quantities import Prediction, quantity
from sandtable.validation.schema import ScoreTable
from sandtable.validation.scores import Score, contests, score

FIGURE = st.floats(min_value=1e-3, max_value=1e3)


def took(seconds: float, gib: float = 1.0) -> Prediction:
    size = round(gib * 2**30)
    return Prediction(step_ns=round(seconds * 1e9), peak_allocated_bytes=size, peak_reserved_bytes=2 * size)


def row(name: str, measured: float, *, use: str = "predict", **settings: object) -> PublishedRow:
    return PublishedRow(id=name, use=use, settings={"gpus": 4, **settings}, measured={"time": measured}, args=())


def rows(*given_rows: PublishedRow, quantity: str = "step_s") -> RowSet:
    return RowSet(
        name="made_up",
        title="",
        source="made up",
        cluster="dgx-a100",
        script=Path("train.py"),
        num_steps=2,
        assumes=(),
        rank_within=("model",),
        scores={"time": ScoreTable(quantity=quantity, limit_pct=10.0)},
        rows=given_rows,
    )


def scored(*pairs: tuple[PublishedRow, float]) -> Score:
    return score(rows(*(each for each, _ in pairs)), "time", {each.id: took(seconds) for each, seconds in pairs})


def test_errors_are_of_rows_not_calibrated_on() -> None:
    found = scored(
        (row("a", 1.0), 1.1), (row("b", 2.0), 1.0), (row("c", 1.0, use="calibrate"), 9.0), (row("d", 1.0), 1.0)
    )
    assert found.errors_pct == pytest.approx([10.0, 50.0, 0.0])
    assert found.mean_abs_pct == pytest.approx(20.0)
    assert found.median_abs_pct == pytest.approx(10.0)
    assert found.max_abs_pct == pytest.approx(50.0)
    assert found.bias_pct == pytest.approx(-40.0 / 3)
    plain = found.to_dict()
    assert (plain["n"], plain["mean_abs_pct"], plain["max_abs_pct"]) == (3, 20.0, 50.0)
    assert [each["use"] for each in plain["rows"]] == ["predict", "predict", "calibrate", "predict"]


def test_a_set_without_predictions_has_no_error() -> None:
    found = score(rows(row("a", 1.0)), "time", {})
    assert found.missing == ("a",)
    assert (found.mean_abs_pct, found.median_abs_pct, found.max_abs_pct) == (None, None, None)


@given(st.lists(st.tuples(FIGURE, FIGURE), min_size=1))
def test_mean_and_median_are_at_most_the_worst(pairs: list[tuple[float, float]]) -> None:
    found = scored(*((row(f"r{k}", measured), predicted) for k, (measured, predicted) in enumerate(pairs)))
    assert found.mean_abs_pct is not None
    assert found.median_abs_pct is not None
    assert found.max_abs_pct is not None
    assert found.mean_abs_pct <= found.max_abs_pct * (1 + 1e-9)
    assert found.median_abs_pct <= found.max_abs_pct * (1 + 1e-9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("step_s", 2.0),
        ("step_ms", 2000.0),
        ("samples_per_s", 16.0),
        ("samples_per_gpu_s", 4.0),
        ("tokens_per_gpu_s", 400.0),
        ("work_per_gpu_s", 1.0),
        ("peak_gib", 6.0),
        ("peak_allocated_gib", 3.0),
        ("peak_allocated_gb", 3 * 2**30 / 1e9),
    ],
)
def test_quantities_follow_from_the_step(name: str, expected: float) -> None:
    one = row("a", 1.0, global_batch=32, seq=100, work=8)
    assert quantity(name)(took(2.0, gib=3.0), one) == pytest.approx(expected)


def test_a_quantity_names_the_setting_it_misses() -> None:
    with pytest.raises(ValidationSetError, match="row a must have the setting 'global_batch'"):
        quantity("samples_per_s")(took(1.0), row("a", 1.0))
    with pytest.raises(ValidationSetError, match="one of step_s"):
        quantity("speed")


def test_the_pick_is_judged_by_what_was_measured() -> None:
    found = scored(
        (row("fast", 1.0, model="x"), 2.0),
        (row("slow", 1.5, model="x"), 1.9),
        (row("good", 3.0, model="y"), 4.0),
        (row("bad", 5.0, model="y"), 6.0),
        (row("alone", 1.0, model="z"), 1.0),
    )
    x, y = contests(found, ["model"])
    assert (x.pick.row.id, x.best.row.id) == ("slow", "fast")
    assert x.regret_pct == pytest.approx(50.0)
    assert (y.pick.row.id, y.regret_pct) == ("good", 0.0)
    assert contests(found, []) == []
    plain = ValidationReport(scores=(found,), contests={"time": [x, y]}).to_dict()["ranking"]["time"]
    assert (plain["n"], plain["within_2_pct"], plain["max_regret_pct"]) == (2, 1, 50.0)


@given(st.lists(st.tuples(FIGURE, FIGURE), min_size=2, max_size=8))
def test_the_pick_is_never_better_than_the_best(pairs: list[tuple[float, float]]) -> None:
    found = scored(*((row(f"r{k}", measured, model="x"), seconds) for k, (measured, seconds) in enumerate(pairs)))
    assert all(each.regret_pct >= 0.0 for each in contests(found, ["model"]))


def test_the_scatter_plot_has_a_point_for_every_row_and_escapes_names() -> None:
    found = scored((row("a<b", 1.0), 1.1), (row("c", 2.0, use="calibrate"), 1.0))
    drawing = ElementTree.fromstring(scatter_svg(ValidationReport(scores=(found,))))
    titles = [each.text or "" for each in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert [title.split(":")[0] for title in titles] == ["a<b", "c"]
    assert ElementTree.fromstring(scatter_svg(ValidationReport(scores=()))).tag.endswith("svg")


def test_figures_replace_what_is_between_the_marks_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- validation: begin -->\nold\n<!-- validation: end -->\nafter\n")
    found = scored((row("a", 1.0, model="x"), 1.1), (row("b", 2.0, model="x"), 2.0))
    report = ValidationReport(scores=(found,), contests={"time": contests(found, ["model"])})
    for _ in range(2):
        fill_page(page, report)
    text = page.read_text()
    assert text.startswith("before\n<!-- validation: begin -->\n| set |")
    assert text.endswith("<!-- validation: end -->\nafter\n")
    assert "| time | 2 | 5.0 % | 5.0 % | 10.0 % | 10 % |" in text
    assert "| a | 1.1 | 1 | +10.0 % |" in text
    assert "| time | 1 | 1 | 0.0 % |" in text
    page.write_text("no marks")
    with pytest.raises(ValidationSetError, match="validation: begin"):
        fill_page(page, report)
