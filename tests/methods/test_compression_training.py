"""Training with each compression: it arrives where plain SGD does; and without a compiler nothing is sent."""

import pytest
import torch
from tests.methods.test_compression import vector_of

from sandtable.errors import BuildError
from sandtable.methods.data import QSGD, Compression, Half, MomentumCorrection, RandomK, Sign, Threshold, TopK
from sandtable.methods.data.compression import kernels


@pytest.mark.parametrize(
    "compression",
    [
        Half(),
        Half("bfloat16"),
        Sign(),
        QSGD(2),
        QSGD(4),
        QSGD(8, error_feedback=False),
        TopK(0.02),
        TopK(0.05, values="two-bit"),
        TopK(0.02, momentum=MomentumCorrection(factor=0.5, warm_up_steps=100)),
        RandomK(0.05),
        Threshold(0.1),
        Threshold(share=0.05),
    ],
    ids=str,
)
def test_two_workers_find_the_minimum_of_a_bowl(compression: Compression) -> None:
    """Each worker has a bowl of its own; the lowest point of their sum lies between, where neither gradient is zero."""
    steepness = torch.linspace(0.2, 1.0, 200)
    centres = [vector_of(200, seed=1), vector_of(200, seed=2)]
    goal = (centres[0] + centres[1]) / 2
    codecs = [compression.codec(200, torch.float32, seed=rank) for rank in range(2)]
    weights = torch.zeros(200)
    average = torch.zeros(200)
    for step in range(3000):
        update = torch.zeros(200)
        for codec, centre in zip(codecs, centres, strict=True):
            codec.add(codec.encode(steepness * (weights - centre)), update, weight=0.5)
        weights -= 0.01 * update
        if step >= 2000:
            average += weights / 1000  # what is left jitters about the goal
    assert (average - goal).norm() < 0.02 * goal.norm()


def test_without_a_compiler_nothing_is_sent(monkeypatch, tmp_path) -> None:
    kernels._library.cache_clear()
    monkeypatch.setenv("SANDTABLE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    codec = Sign().codec(10, torch.float32)
    with pytest.raises(BuildError, match="install g\\+\\+"):
        codec.encode(torch.zeros(10))
    monkeypatch.undo()
    assert codec.encode(torch.zeros(10)).numel() == 4 + 2
