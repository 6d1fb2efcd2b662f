"""The example of docs/servers.md under torchrun: roles by rank, addresses through torchrun's store."""

import re
from pathlib import Path

import pytest
from tests.torchrun import torchrun

EXAMPLE = Path(__file__).parents[2] / "examples" / "parameter_server.py"
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("flags", [["--sync", "async"], ["--sync", "stale", "--bound", "2"], ["--sync", "bulk"]])
def test_two_workers_and_two_servers_train(flags, tmp_path):
    done = torchrun(4, EXAMPLE, *flags, "--steps", "300", "--checkpoints", str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    accuracies = re.findall(r"^worker \d: accuracy (\S+) ", done.stdout, re.MULTILINE)
    assert len(accuracies) == 2
    # After `synchronize` both have the servers' weights.
    assert accuracies[0] == accuracies[1]
    assert float(accuracies[0]) > 0.85
    updates = re.findall(r"^server \d: (\d+) updates", done.stdout, re.MULTILINE)
    assert updates == (["300", "300"] if "bulk" in flags else ["600", "600"])
    leads = [int(lead) for lead in re.findall(r"largest lead (\d+)", done.stdout)]
    assert "stale" not in flags or max(leads) <= 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-0-of-2.pt", "shard-1-of-2.pt"]
