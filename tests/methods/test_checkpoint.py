"""Checkpoints of replicas: every rank gets back exactly what it had."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.methods.processes import run
from tests.methods.training import flat_weights, make_model, step_through
from torch import nn

from sandtable.errors import MethodError
from sandtable.methods.data import DataParallel, Gossip, LocalSGD, ReplicaCheckpoints, TopK
from sandtable.methods.server import ParameterServer

_SETTINGS: dict[str, dict[str, Any]] = {
    "gossip": {"sync": LocalSGD(2), "exchange": Gossip(), "compression": TopK(0.1)},
    "server": {"exchange": ParameterServer(timeout_s=30), "compression": TopK(0.1)},
}


def _made(directory: Path, name: str) -> tuple[nn.Module, DataParallel, ReplicaCheckpoints]:
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    parallel = DataParallel(model, optimizer, **_SETTINGS[name])
    return model, parallel, ReplicaCheckpoints(directory, model=model, optimizer=optimizer, parallel=parallel)


def _interrupted(directory: Path, name: str) -> dict[str, Any]:
    model, parallel, checkpoints = _made(directory, name)
    assert checkpoints.load() == 0
    for step in range(3):
        step_through(model, parallel, 1, first=step)
        checkpoints.save(step + 1)
    dist.barrier()  # rank 0 has removed the old ones
    kept = sorted(folder.name for folder in directory.iterdir())
    step_through(model, parallel, 3, first=3)
    parallel.close()
    # The newest was not written to the end: the one before it counts.
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.copytree(directory / "step-3", directory / "step-9")
        (directory / "step-9" / ".metadata").unlink()
        shutil.copytree(directory / "step-2", directory / "step-2-to-keep")
    dist.barrier()
    other, resumed, again = _made(directory, name)
    first = again.load()
    step_through(other, resumed, 3, first=3)
    resumed.close()
    return {"kept": kept, "first": first, "uninterrupted": flat_weights(model), "resumed": flat_weights(other)}


@pytest.mark.parametrize("name", _SETTINGS)
def test_every_rank_goes_on_from_its_own_state(name, tmp_path):
    for found in run(3, _interrupted, tmp_path, name):
        assert found["kept"] == ["step-2", "step-3"]
        assert found["first"] == 3
        assert torch.equal(found["resumed"], found["uninterrupted"])


def _save(directory: Path) -> None:
    ReplicaCheckpoints(directory, model=make_model()).save(7)


def _load(directory: Path) -> str:
    try:
        ReplicaCheckpoints(directory, model=make_model()).load()
    except MethodError as error:
        return str(error)
    return ""


def test_another_number_of_ranks_is_refused(tmp_path):
    run(2, _save, tmp_path)
    assert all(
        "must hold the state of as many ranks as there are now (3)" in message for message in run(3, _load, tmp_path)
    )


def test_no_checkpoint_at_all_cannot_be_kept(tmp_path):
    with pytest.raises(MethodError, match="keep must be 1 or more"):
        ReplicaCheckpoints(tmp_path, keep=0)
