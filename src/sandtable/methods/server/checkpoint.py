"""A shard on disk: written beside the old file, made durable, then moved into its place.

At any moment, even after a power cut, the file is one complete checkpoint: the last that was finished. torch's
weights-only loader, which runs no code, reads it back.
"""

import os
from pathlib import Path
from typing import Any

import torch

from sandtable.errors import MethodError

__all__ = ["checkpoint_path", "read_checkpoint", "write_checkpoint"]

_FORMAT = 1


def checkpoint_path(directory: str | Path, *, shard: int, num_shards: int) -> Path:
    return Path(directory) / f"shard-{shard}-of-{num_shards}.pt"


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write `state`, and return when it would survive a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    with open(unfinished, "wb") as file:
        torch.save({"format": _FORMAT, **state}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_checkpoint(path: Path, *, digest: str) -> dict[str, Any] | None:
    """Return the checkpoint at `path` if there is one; it must be of the same model and sharding."""
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        file_format, file_digest = state["format"], state["digest"]
    except Exception as error:
        raise MethodError(
            f"{path} must be a checkpoint of a parameter server, but cannot be read as one ({error}); "
            "move it away to start from the beginning"
        ) from None
    if (file_format, file_digest) != (_FORMAT, digest):
        raise MethodError(
            f"{path} must be a checkpoint of this model and sharding ({digest}, format {_FORMAT}), but is of "
            f"{file_digest}, format {file_format}; give another directory, or move it away to start from the beginning"
        )
    return dict(state)
