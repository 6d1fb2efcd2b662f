"""A template puts the value of each knob where it belongs, and leaves all else alone."""

import json
import tomllib
from pathlib import Path

import pytest

from sandtable.errors import PlanError
from sandtable.planner.command_template import CommandTemplate, FileSetting


def filled(*words, **values):
    return CommandTemplate(words).fill(values)


def test_braces_hold_knobs_and_expressions():
    assert filled("train.py", "--tp={tp}", "--dp", "{world // tp}", tp=4, world=32) == (
        "train.py",
        "--tp=4",
        "--dp",
        "8",
    )
    assert filled("{x / 2}", "{flag}", x=3, flag=True) == ("1.5", "true")


@pytest.mark.parametrize("word", ['{"zero": 2}', "{}", "{1}", "a{b c}", "{a.b}"])
def test_braces_that_hold_no_expression_stay(word):
    assert filled("train.py", word, tp=1) == ("train.py", word)


def test_doubled_braces_are_single_ones():
    assert filled("{{tp}}", tp=1) == ("{tp}",)


def test_names_are_those_in_words_and_settings(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text("{}")
    setting = FileSetting(str(file), "a", "{zero}")
    assert CommandTemplate(("train.py", "{tp * pp}", str(file)), (setting,)).names == {"tp", "pp", "zero"}


def test_settings_are_made_in_a_copy_that_the_command_names(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 0}, "steps": 3}')
    settings = tuple(
        FileSetting.parse(f"{file}:{text}")
        for text in ("zero_optimization.stage={zero}", "bf16.enabled={half}", "name=z{zero}")
    )
    template = CommandTemplate(("train.py", f"--deepspeed={file}"), settings)
    _, word = template.fill({"zero": 2, "half": True}, directory=tmp_path / "settings")
    content = json.loads(Path(word.removeprefix("--deepspeed=")).read_text())
    assert content == {"zero_optimization": {"stage": 2}, "steps": 3, "bf16": {"enabled": True}, "name": "z2"}
    assert json.loads(file.read_text())["zero_optimization"]["stage"] == 0
    assert template.fill({"zero": 2, "half": True}, directory=tmp_path / "settings")[1] == word
    assert template.fill({"zero": 3, "half": True}, directory=tmp_path / "settings")[1] != word


def test_toml_keeps_its_comments_and_yaml_its_order(tmp_path):
    toml, yaml = tmp_path / "job.toml", tmp_path / "job.yaml"
    toml.write_text("# sizes\n[parallelism]\ntensor_parallel_degree = 1 # of a layer\n")
    yaml.write_text("model: gpt\nparallelism:\n  tp: 1\n")
    settings = (
        FileSetting(str(toml), "parallelism.tensor_parallel_degree", "{tp}"),
        FileSetting(str(yaml), "parallelism.tp", "{tp}"),
    )
    template = CommandTemplate(("run.py", str(toml), str(yaml)), settings)
    one, other = (Path(word).read_text() for word in template.fill({"tp": 4}, directory=tmp_path / "s")[1:])
    assert tomllib.loads(one) == {"parallelism": {"tensor_parallel_degree": 4}}
    assert "# sizes" in one
    assert other == "model: gpt\nparallelism:\n  tp: 4\n"


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ("ds.json", "a setting must be a file"),
        ("other.json:a={x}", "must be named in the command"),
        ("ds.json:steps.a={x}", "must lead through tables"),
    ],
)
def test_settings_that_cannot_be_made_are_errors(setting, rule, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text('{"steps": 3}')
    with pytest.raises(PlanError, match=rule):
        CommandTemplate(("train.py", "ds.json"), (FileSetting.parse(setting),)).fill({"x": 1}, directory=tmp_path / "s")
