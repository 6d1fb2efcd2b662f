"""Checkpoints of replicas that differ: every rank's own state, in the files of torch.distributed.checkpoint.

    checkpoints = ReplicaCheckpoints("run1", model=model, optimizer=optimizer, parallel=parallel)
    first = checkpoints.load()  # 0 where there is none
    for step in range(first, num_steps):
        ...
        parallel.step()
        if (step + 1) % 100 == 0:
            checkpoints.save(step + 1)

Between two averages of local SGD no two ranks have the same weights, and error feedback, momentum and what partners
know of each other always differ: so each rank saves its own. Anything with `state_dict` and `load_state_dict` can be
saved. A checkpoint counts once it is completely written; the previous one is kept until then, so a job that is killed
at any time resumes from a complete checkpoint.

"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from sandtable.errors import MethodError

__all__ = ["ReplicaCheckpoints", "Stateful"]

_STEP = "step-"
_LAST_FILE = ".metadata"
"""The file that torch.distributed.checkpoint writes last."""


class Stateful(Protocol):
    """What can be saved: a model, an optimizer, a scheduler, a `DataParallel`."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


class ReplicaCheckpoints:
    """One folder per checkpoint below `directory`, which all ranks must reach; the last `keep` are kept."""

    def __init__(
        self,
        directory: str | Path,
        *,
        keep: int = 2,
        group: dist.ProcessGroup | None = None,
        **objects: Stateful,
    ) -> None:
        if keep < 1:
            raise MethodError(f"keep must be 1 or more checkpoints, but got {keep}; 2 is usual")
        self._directory = Path(directory)
        self._keep = keep
        self._group = group
        self._objects = objects
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)

    def save(self, step: int) -> None:
        """Save the current state, after `step` steps. All ranks call it."""
        tensors, frame = _take_apart({name: value.state_dict() for name, value in self._objects.items()})
        state: dict[str, Any] = {f"{self._rank}.{number}": tensor for number, tensor in enumerate(tensors)}
        state[f"{self._rank}.frame"] = _Frame(frame)
        folder = self._directory / f"{_STEP}{step}"
        if self._rank == 0:
            # Left by a job that was killed while writing, or that reached this step before.
            shutil.rmtree(folder, ignore_errors=True)
        dist.barrier(self._group)
        save(state, checkpoint_id=folder, process_group=self._group)
        if self._rank == 0:
            for old in self._complete()[self._keep :]:
                shutil.rmtree(old, ignore_errors=True)

    def load(self) -> int:
        """Load the last complete checkpoint and return its step, or 0 if there is none. All ranks call it."""
        newest = [str(folder) for folder in self._complete()[:1]]
        dist.broadcast_object_list(choice := [newest], group=self._group, group_src=0)
        if not choice[0]:
            return 0
        folder = Path(choice[0][0])
        self._check_ranks(folder)
        key = f"{self._rank}.frame"
        header: dict[str, Any] = {key: None}
        load(header, checkpoint_id=folder, process_group=self._group)
        frame = header[key].state
        tensors: dict[str, Any] = {f"{self._rank}.{place.number}": place.empty() for place in _places(frame)}
        load(tensors, checkpoint_id=folder, process_group=self._group)
        state = _put_together(frame, [tensors[f"{self._rank}.{number}"] for number in range(len(tensors))])
        for name, value in self._objects.items():
            if name not in state:
                raise MethodError(f"{folder} must have the state of {name}, but has {sorted(state)}; move it away")
            value.load_state_dict(state[name])
        return int(folder.name.removeprefix(_STEP))

    def _check_ranks(self, folder: Path) -> None:
        keys = FileSystemReader(folder).read_metadata().state_dict_metadata
        num_ranks = sum(key.endswith(".frame") for key in keys)
        if num_ranks != self._size:
            raise MethodError(
                f"{folder} must hold the state of as many ranks as there are now ({self._size}), but holds "
                f"{num_ranks}; start {num_ranks} ranks, or load a model that was saved after synchronize()"
            )

    def _complete(self) -> list[Path]:
        """Return the folders of complete checkpoints, newest first."""
        folders = [
            folder
            for folder in self._directory.glob(f"{_STEP}*")
            if folder.name.removeprefix(_STEP).isdecimal() and (folder / _LAST_FILE).exists()
        ]
        return sorted(folders, key=lambda folder: int(folder.name.removeprefix(_STEP)), reverse=True)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor was taken out of a state."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def empty(self) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class _Frame:
    """A state without its tensors, opaque to torch.distributed.checkpoint."""

    state: Any


def _take_apart(state: Any) -> tuple[list[Tensor], Any]:
    """Return the tensors of a nested state, and the state with places where they were."""
    tensors: list[Tensor] = []

    def visit(value: Any) -> Any:
        if isinstance(value, Tensor):
            tensors.append(value.detach().cpu().contiguous())
            return _Place(len(tensors) - 1, tuple(value.shape), value.dtype)
        if isinstance(value, dict):
            return {key: visit(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(visit(entry) for entry in value)
        return value

    frame = visit(state)
    return tensors, frame


def _places(frame: Any) -> Iterator[_Place]:
    if isinstance(frame, _Place):
        yield frame
    elif isinstance(frame, dict | list | tuple):
        for value in frame.values() if isinstance(frame, dict) else frame:
            yield from _places(value)


def _put_together(frame: Any, tensors: list[Tensor]) -> Any:
    if isinstance(frame, _Place):
        return tensors[frame.number]
    if isinstance(frame, dict):
        return {key: _put_together(value, tensors) for key, value in frame.items()}
    if isinstance(frame, list | tuple):
        return type(frame)(_put_together(value, tensors) for value in frame)
    return frame
