"""`--ranks auto` runs a few ranks, `--ranks all` runs them all, and both give the same trace."""

import pytest
from tests.vgpu.capturing import capture

from sandtable.trace import Trace

WORLD_SIZE = 16
EXAMPLES = {
    "resnet_ddp": ("resnet_ddp.py", "--steps", 2),
    "gpt_ddp": ("gpt_ddp.py", "--bucket-mb", 0.1),
    "gpt_fsdp2": ("gpt_fsdp2.py", "--accumulate", 2),
    "gpt_fsdp1": ("gpt_fsdp1.py",),
    "gpt_tp": ("gpt_tp.py", "--tp", 4),
    "tensor_parallel_gpt": ("tensor_parallel_gpt.py", "--tp", 4, "--sequence-parallel"),
    # A pipeline of 16 stages, or of 32 interleaved, needs as many layers: 2.7b has 32.
    "gpt_pp-gpipe": ("gpt_pp.py", "--size", "2.7b", "--batch", 16, "--schedule", "gpipe"),
    "gpt_pp-1f1b": ("gpt_pp.py", "--size", "2.7b", "--batch", 16, "--schedule", "1f1b"),
    "gpt_pp-interleaved": ("gpt_pp.py", "--size", "2.7b", "--batch", 16, "--schedule", "interleaved"),
    "gpt_3d": ("gpt_3d.py", "--tp", 2, "--pp", 4, "--dp", 2),
    "gpt_3d-interleaved": ("gpt_3d.py", "--tp", 4, "--pp", 2, "--schedule", "interleaved", "--sequence-parallel"),
    "gpt_3d-tp-dp": ("gpt_3d.py", "--tp", 2, "--dp", 8, "--sequence-parallel"),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", EXAMPLES.values(), ids=EXAMPLES)
def test_every_rank_is_the_same_whether_all_ranks_run_or_a_few(command: tuple[object, ...]) -> None:
    script, *flags = command
    every = capture(str(script), *flags, world_size=WORLD_SIZE, ranks="all")
    few = capture(str(script), *flags, world_size=WORLD_SIZE, ranks="auto")
    assert every.captured_ranks == tuple(range(WORLD_SIZE))
    assert facts(few) == facts(every)
    assert {cls.ranks for cls in few.classes} == {cls.ranks for cls in every.classes}


def facts(trace: Trace) -> dict[int, tuple[object, ...]]:
    """What makes a rank's trace, by rank."""
    found: dict[int, tuple[object, ...]] = {}
    for rank in range(trace.world_size):
        view = trace.rank(rank)
        peers = tuple(view.peer(row) for row in range(len(view.calls)))
        found[rank] = (view.digest(), view.groups, peers, view.memory)
    return found
