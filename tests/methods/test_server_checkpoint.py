"""A shard on disk is always one complete checkpoint."""

import pytest
import torch

from sandtable.errors import MethodError
from sandtable.methods.server.checkpoint import checkpoint_path, read_checkpoint, write_checkpoint


def test_what_was_written_is_read(tmp_path):
    path = checkpoint_path(tmp_path / "new", shard=1, num_shards=4)
    write_checkpoint(path, {"digest": "d", "weights": [torch.arange(3.0)]})
    state = read_checkpoint(path, digest="d")
    assert path.name == "shard-1-of-4.pt"
    assert state is not None
    assert torch.equal(state["weights"][0], torch.arange(3.0))


def test_there_may_be_none(tmp_path):
    assert read_checkpoint(tmp_path / "shard-0-of-1.pt", digest="d") is None


def test_a_write_that_is_cut_short_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "shard-0-of-1.pt"
    write_checkpoint(path, {"digest": "d", "number": 1})

    def cut_short(state, file):
        file.write(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", cut_short)
    with pytest.raises(OSError, match="no space"):
        write_checkpoint(path, {"digest": "d", "number": 2})
    state = read_checkpoint(path, digest="d")
    assert state is not None
    assert state["number"] == 1


def test_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "shard-0-of-1.pt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(MethodError, match="cannot be read as one"):
        read_checkpoint(path, digest="d")


def test_one_of_another_model_is_refused(tmp_path):
    path = tmp_path / "shard-0-of-1.pt"
    write_checkpoint(path, {"digest": "theirs"})
    with pytest.raises(MethodError, match=r"must be a checkpoint of this model and sharding \(ours.* is of theirs"):
        read_checkpoint(path, digest="ours")
