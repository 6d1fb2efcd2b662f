"""The example under torchrun: roles by rank, addresses through torchrun's store."""

import re
from pathlib import Path

import pytest
from tests.torchrun import torchrun

EXAMPLE = Path(__file__).parents[3] / "examples" / "distbelief.py"
pytestmark = pytest.mark.slow


def run(*flags: str) -> str:
    done = torchrun(5, EXAMPLE, *flags)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_downpour_trains_three_replicas():
    said = run()
    accuracies = re.findall(r"^replica \d: accuracy (\S+) after 400 steps", said, re.MULTILINE)
    # After `synchronize` all have the servers' weights.
    assert len(accuracies) == 3
    assert len(set(accuracies)) == 1
    assert float(accuracies[0]) > 0.85
    assert len(re.findall(r"^server \d: \d+ updates", said, re.MULTILINE)) == 2


def test_sandblaster_goes_on_from_its_checkpoints(tmp_path):
    flags = ("--method", "sandblaster", "--checkpoints", str(tmp_path), "--iterations")
    first, second = run(*flags, "20"), run(*flags, "40")
    assert re.findall(r"^iteration (\d+):", first, re.MULTILINE) == ["0", "10", "20"]
    assert re.findall(r"^iteration (\d+):", second, re.MULTILINE) == ["30", "40"]
    losses = [float(loss) for said in (first, second) for loss in re.findall(r"^coordinator: loss (\S+) ", said, re.M)]
    assert losses[1] < losses[0]
    accuracies = re.findall(r"^replica \d: accuracy (\S+),", second, re.MULTILINE)
    assert len(accuracies) == 2
    assert accuracies[0] == accuracies[1]
    assert float(accuracies[0]) > 0.9
