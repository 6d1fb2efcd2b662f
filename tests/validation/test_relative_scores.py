"""Scores in per cent of another row."""

from pathlib import Path

import pytest

from sandtable.errors import ValidationSetError
from sandtable.validation.quantities import Prediction
from sandtable.validation.rows import RowSet, load_set
from sandtable.validation.scores import score

FILE = """
title = "two networks"
source = "made up"
cluster = "dgx1-p100"
script = "train.py"
rows = [
  {{ id = "a-1", use = "calibrate", gpus = 1, network = "a", global_batch = 10, measured = {{}} }},
  {{ id = "b-1", use = "calibrate", gpus = 1, network = "b", global_batch = 10, measured = {{}} }},
  {{ id = "a-2", gpus = 2, network = "a", global_batch = 20, measured = {{ scaling = 80 }} }},
  {{ id = "b-2", gpus = 2, network = "b", global_batch = 20, measured = {{ scaling = 50 }} }},
]
[flags]
[scores.scaling]
quantity = "samples_per_gpu_s"
relative_to = "{relative_to}"
"""


def rows(directory: Path, relative_to: str) -> RowSet:
    (directory / "scripts").mkdir()
    (directory / "rows").mkdir()
    (directory / "scripts" / "train.py").touch()
    file = directory / "rows" / "two.toml"
    file.write_text(FILE.format(relative_to=relative_to))
    return load_set(file)


def took(seconds: float) -> Prediction:
    return Prediction(step_ns=round(seconds * 1e9), peak_allocated_bytes=0, peak_reserved_bytes=0)


def test_each_row_is_counted_from_the_row_its_settings_name(tmp_path: Path) -> None:
    steps = {"a-1": took(1.0), "a-2": took(1.25), "b-1": took(3.0), "b-2": took(4.0)}
    found = score(rows(tmp_path, "{network}-1"), "scaling", steps)
    assert [(each.row.id, each.predicted) for each in found.outcomes] == [("a-2", pytest.approx(80)), ("b-2", 75)]
    assert found.mean_abs_pct == pytest.approx(25)  # 0 and 50 per cent off


def test_row_without_its_reference_is_missing(tmp_path: Path) -> None:
    found = score(rows(tmp_path, "{network}-1"), "scaling", {"a-2": took(1.0), "b-1": took(1.0), "b-2": took(1.0)})
    assert [each.row.id for each in found.outcomes] == ["b-2"]
    assert found.missing == ("a-2",)


@pytest.mark.parametrize(
    ("relative_to", "message"),
    [("{network}-3", "there is no 'a-3'"), ("{width}-1", "row a-2, but it has no 'width'")],
)
def test_reference_that_is_not_there_is_refused(tmp_path: Path, relative_to: str, message: str) -> None:
    with pytest.raises(ValidationSetError, match=message):
        score(rows(tmp_path, relative_to), "scaling", {"a-2": took(1.0)})
