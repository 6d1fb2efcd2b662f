"""Megatron-FSDP: ranks that do not run do not fail its check of all shards."""

import importlib
from typing import Any

import torch.distributed as dist
from tests.vgpu.virtual import rehearse

RANKS = 8
ROWS = 2**16 + 300
"""The last shard has more than 2**16 of them, so its shape takes more bytes when it is pickled."""

SOURCE = """
import torch.distributed as dist

def gather_and_compute_chunk_metadata(shard):
    shapes = [None] * dist.get_world_size()
    dist.all_gather_object(shapes, list(shard))
    return shapes

def validate_uneven_dtensor(shard):
    assert sum(rows for rows, _ in gather_and_compute_chunk_metadata(shard)) == %d
"""


def _check(folder: str) -> None:
    import sys

    sys.path.insert(0, folder)
    module: Any = importlib.import_module("megatron_fsdp.uneven_dtensor")

    dist.init_process_group("nccl")
    rank = dist.get_rank()
    shard = (ROWS - 20 * (RANKS - 1) if rank == RANKS - 1 else 20, 4)
    module.validate_uneven_dtensor(shard)
    shapes = module.gather_and_compute_chunk_metadata(shard)
    assert tuple(shapes[rank]) == shard
    assert shapes[1] == [20, 4]


def test_shards_of_ranks_that_do_not_run_are_not_checked(tmp_path):
    package = tmp_path / "megatron_fsdp"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "uneven_dtensor.py").write_text(SOURCE % ROWS)
    done = rehearse(_check, ranks=RANKS, captured="auto", arguments={"folder": str(tmp_path)})
    assert len(done.trace.captured_ranks) < RANKS
