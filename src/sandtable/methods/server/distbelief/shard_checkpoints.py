"""The checkpoints of a shard: the last two, so that all shards have one in common whenever one dies."""

import json
import re
from pathlib import Path
from typing import Any

from sandtable.methods.server.checkpoint import checkpoint_path, read_checkpoint, write_checkpoint
from sandtable.methods.server.distbelief.named_vectors import NamedVectors
from sandtable.methods.server.settings import Checkpoints

__all__ = ["ShardCheckpoints"]

_NUM_KEPT = 2


class ShardCheckpoints:
    """The files of one shard, named after the iteration, with the coordinator's notes beside the vectors."""

    def __init__(self, checkpoints: Checkpoints, *, shard: int, num_shards: int, digest: str) -> None:
        self._path = checkpoint_path(checkpoints.directory, shard=shard, num_shards=num_shards)
        self._every = checkpoints.every
        self._digest = digest

    @property
    def kept(self) -> list[int]:
        """The iterations on disk, in order."""
        pattern = re.compile(re.escape(self._path.stem) + r"-iteration-(\d+)\.pt")
        if not self._path.parent.is_dir():
            return []
        matches = (pattern.fullmatch(path.name) for path in self._path.parent.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def keep(self, iteration: int, vectors: NamedVectors, notes: dict[str, Any]) -> bool:
        """Write this iteration durably, if it is due. Return whether it was written."""
        if iteration % self._every:
            return False
        state = {"digest": self._digest, "vectors": vectors.state_dict(), "notes": json.dumps(notes)}
        write_checkpoint(self._file(iteration), state)
        self._forget_after(iteration)
        for old in self.kept[:-_NUM_KEPT]:
            self._file(old).unlink()
        return True

    def restore(self, iteration: int, vectors: NamedVectors) -> dict[str, Any] | None:
        """Restore the vectors of `iteration`. Return its notes, or None if it is not on disk."""
        state = read_checkpoint(self._file(iteration), digest=self._digest)
        if state is None:
            return None
        self._forget_after(iteration)
        vectors.load_state_dict(state["vectors"])
        notes: dict[str, Any] = json.loads(state["notes"])
        return notes

    def _forget_after(self, iteration: int) -> None:
        """Delete later iterations: they must not be mixed with other shards' of the new run."""
        for other in self.kept:
            if other > iteration:
                self._file(other).unlink()

    def _file(self, iteration: int) -> Path:
        return self._path.with_name(f"{self._path.stem}-iteration-{iteration}.pt")
