"""The example in the docs runs under torchrun."""

import re
from pathlib import Path

import pytest
from tests.torchrun import torchrun

EXAMPLE = Path(__file__).parents[3] / "examples" / "pipeline.py"
pytestmark = pytest.mark.slow


def run_example(ranks, *options):
    done = torchrun(ranks, EXAMPLE, *options)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_replicated_stages_train_draw_and_go_on_from_a_checkpoint(tmp_path):
    options = ["--replicas", "2,1", "--checkpoints", str(tmp_path / "checkpoints")]
    run_example(3, *options, "--steps", "100")
    said = run_example(3, *options, "--steps", "200", "--picture", str(tmp_path / "schedule.html"))
    assert float(re.findall(r"^accuracy (\S+) after 200 steps", said, re.MULTILINE)[0]) > 0.75
    assert len(re.findall(r"bytes sent in \d+ messages", said)) == 3
    assert "Forward pass of minibatch 1" not in (tmp_path / "schedule.html").read_text()


@pytest.mark.parametrize("schedule", ["flush", "interleaved"])
def test_synchronous_schedules_train(schedule):
    stages = "4" if schedule == "interleaved" else "2"
    said = run_example(2, "--schedule", schedule, "--stages", stages, "--steps", "100")
    assert float(re.findall(r"^accuracy (\S+) after 100 steps", said, re.MULTILINE)[0]) > 0.75
