"""Published rows: the repository's are well-formed, and a malformed file is refused with what is wrong."""

from pathlib import Path

import pytest

from sandtable.cluster import load
from sandtable.errors import ValidationSetError
from sandtable.validation import PublishedRow, load_set, load_sets
from sandtable.validation.quantities import quantity

DIRECTORY = Path(__file__).parents[2] / "validation"
SETS = load_sets(DIRECTORY)

FILE = """
title = "a set"
source = "made up"
cluster = "dgx-a100"
script = "train.py"
args = ["--fused"]
rows = [
  { id = "one", gpus = 2, width = 8, is_wide = true, measured = { time = 1.5 } },
  { id = "two", gpus = 4, is_wide = false, depth = 3, use = "calibrate", measured = { time = 2 } },
]
[flags]
width = "--width"
depth = "--depth"
is_wide = "--wide"
[settings]
width = 4
[scores.time]
quantity = "step_s"
"""


def write(directory: Path, text: str = FILE, **others: str) -> Path:
    for name in ("rows", "scripts"):
        (directory / name).mkdir(exist_ok=True)
    (directory / "scripts" / "train.py").touch()
    for name, content in others.items():
        (directory / "rows" / f"{name}.csv").write_text(content)
    file = directory / "rows" / "made_up.toml"
    file.write_text(text)
    return file


def test_no_two_rows_of_the_repository_share_an_id() -> None:
    ids = [row.id for each in SETS for row in each.rows]
    assert len(ids) == len(set(ids))
    assert len(ids) > 700


@pytest.mark.parametrize("row_set", SETS, ids=lambda each: each.name)
def test_a_set_can_be_rehearsed(row_set) -> None:
    assert row_set.source
    assert row_set.script.is_file()
    assert load(row_set.cluster, nodes=1).gpus_per_node >= 1
    for name, table in row_set.scores.items():
        quantity(table.quantity)
        assert row_set.select(name), f"{name} has rows"


def test_few_rows_are_calibrated_on() -> None:
    rows = [row for each in SETS for row in each.rows]
    assert sum(row.use == "calibrate" for row in rows) <= 0.05 * len(rows)


@pytest.mark.parametrize(
    "row_set", [each for each in SETS if each.script.name == "megatron_gpt.py"], ids=lambda s: s.name
)
def test_settings_of_a_transformer_fit_its_gpus(row_set) -> None:
    for row in row_set.rows:
        flags = dict(zip(row.args, row.args[1:], strict=False))
        split = int(flags.get("--tp", 1)) * int(flags.get("--pp", 1))
        assert row.gpus % split == 0, row.id
        assert int(flags["--global-batch"]) % (row.gpus // split * int(flags["--micro-batch"])) == 0, row.id
        assert row.settings.get("dp", row.gpus // split) == row.gpus // split, row.id


def test_settings_become_flags(tmp_path: Path) -> None:
    one, two = load_set(write(tmp_path)).rows
    assert one.args == ("--fused", "--width", "8", "--wide")
    assert two.args == ("--fused", "--width", "4", "--depth", "3")
    assert (one.use, two.use) == ("predict", "calibrate")


def test_rows_of_a_csv_file_are_named_after_their_settings(tmp_path: Path) -> None:
    text = FILE[: FILE.index("rows = [")] + FILE[FILE.index("[flags]") :]
    text += """
[csv]
file = "many.csv"
id = "w{width}-g{gpus}"
columns = { gpus = "gpus", w = "width" }
measured = { time = "seconds" }
calibrate = ["w2-g1"]
"""
    rows = load_set(write(tmp_path, text, many="# where from\ngpus,w,seconds\n1,2,3.5\n2,4,1.25\n")).rows
    assert [(row.id, row.use, row.gpus, row.measured["time"]) for row in rows] == [
        ("w2-g1", "calibrate", 1, 3.5),
        ("w4-g2", "predict", 2, 1.25),
    ]
    with pytest.raises(ValidationSetError, match="there is no w2-g1"):
        load_set(write(tmp_path, text, many="gpus,w,seconds\n2,4,1.25\n"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('source = "made up"', "", "source"),
        ("gpus = 2", "gpus = 0", "row one must have gpus"),
        ('id = "two"', 'id = "one"', "one appear more than once"),
        ("time = 1.5", "size = 1.5", "'size' is none; there are time"),
        ('script = "train.py"', 'script = "other.py"', "there is no 'other.py'"),
        ('use = "calibrate"', 'use = "both"', "use"),
        ("[flags]", "[flag]", "flag"),
        ('title = "a set"', 'title = "a set', "valid TOML"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = write(tmp_path, FILE.replace(old, new, 1))
    with pytest.raises(ValidationSetError, match=message) as error:
        load_set(file)
    assert "made_up.toml" in str(error.value)


def test_a_directory_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationSetError, match="--from"):
        load_sets(tmp_path)


def test_rows_are_plain_data() -> None:
    row = PublishedRow(id="a", use="predict", settings={"gpus": 8}, measured={}, args=())
    assert row.gpus == 8
