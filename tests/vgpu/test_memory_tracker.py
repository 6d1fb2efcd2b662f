"""Peak memory of a training step: the virtual GPU's allocator against torch's MemTracker (torch.distributed._tools).

MemTracker is a dispatch mode that adds up the storages it sees; it knows nothing of the virtual GPU. It is asked twice:
on the virtual GPU's own tensors, and on real tensors of the CPU, in a process where torch is untouched. What neither
counts are the libraries' workspaces.
"""

import json
from pathlib import Path

import pytest
from tests.torchrun import torchrun
from tests.vgpu.capturing import capture

SCRIPT = Path(__file__).parent / "track_memory.py"


@pytest.mark.parametrize("name", ["cnn", "gpt", "gpt-recompute"])
def test_peak_is_what_mem_tracker_says(tmp_path: Path, name: str) -> None:
    trace = capture(SCRIPT, tmp_path, name, world_size=1, num_steps=9)
    on_virtual_gpu = json.loads((tmp_path / "cuda.json").read_text())
    assert on_virtual_gpu["tracked_step"] == pytest.approx(on_virtual_gpu["tracker"], rel=0.001)
    assert on_virtual_gpu["step"] == pytest.approx(on_virtual_gpu["tracker"], rel=0.02)
    assert on_virtual_gpu["step"] == pytest.approx(track_on_cpu(tmp_path, name), rel=0.02)

    rank = trace.rank(0)
    assert rank.memory.allocated_bytes == on_virtual_gpu["tracked_step"]
    assert rank.memory_timeline()[1].max() == rank.memory.allocated_bytes


def track_on_cpu(out: Path, name: str) -> int:
    """MemTracker's figure for real tensors."""
    done = torchrun(1, SCRIPT, str(out), name)
    assert done.returncode == 0, done.stderr[-4000:]
    figures: dict[str, int] = json.loads((out / "cpu.json").read_text())
    return figures["tracker"]
