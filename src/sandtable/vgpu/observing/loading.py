"""Loading: which indices and samples each pass over a data loader reads, and in which order.

Samples are real numbers on the host, so a pass is known by what it read and not by how the loader was set up.
"""

from __future__ import annotations

import functools
import zlib
from typing import Any
from weakref import WeakKeyDictionary

from sandtable.trace import EventKind, Line
from sandtable.vgpu.failures import is_library
from sandtable.vgpu.observing.events import EventLog, after, before
from sandtable.vgpu.observing.workers import WorkerReports

__all__ = ["PassWatcher"]

_MOST_BATCHES = 64
_MOST_INDICES = 4096
_MOST_PASSES = 64
_MOST_ROWS = 2048
_DIGESTED_BYTES = 4096


class PassWatcher:
    """Watches all data loaders of torch in this process."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._workers = WorkerReports()
        self._made: WeakKeyDictionary[Any, Line] = WeakKeyDictionary()
        self._passes: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        """The facts of the pass that an iterator makes."""
        self._starting: dict[str, Any] | None = None
        self._under_way: dict[int, dict[str, Any]] = {}
        """The passes that have begun, and not ended before a backward pass."""
        self._num_passes = 0

    def install(self) -> None:
        """Watch loaders and samplers from now on."""
        from torch.utils.data import DataLoader
        from torch.utils.data.dataloader import _BaseDataLoaderIter
        from torch.utils.data.distributed import DistributedSampler

        after(DataLoader, "__init__", self._on_made)
        before(DataLoader, "__iter__", self._on_pass)
        after(DataLoader, "__iter__", self._on_iterator)
        after(_BaseDataLoaderIter, "_next_index", self._on_index)
        self._watch_batches(_BaseDataLoaderIter)
        before(DistributedSampler, "__iter__", self._on_sampler)
        before(DistributedSampler, "set_epoch", self._on_epoch)
        self._workers.install()

    def finish(self) -> None:
        """Add to each pass what its workers reported."""
        reports = self._workers.read()
        for event in self._log.events:
            if event.kind is EventKind.LOADER and "pass" in event.facts:
                found = [report for report in reports if report["pass"] == event.facts["pass"]]
                event.facts["workers"] = found  # type: ignore[index]

    def begin_backward(self) -> None:
        """Note that the passes under way are for training: those that go on, not a look at the first batch.

        If none goes on, `next(iter(loader))` has made the batch.
        """
        going_on = {facts["pass"] for facts in self._passes.values()} & self._under_way.keys()
        for number in going_on or self._under_way.keys():
            self._under_way[number]["trains"] = True
        self._under_way.clear()

    def _on_made(self, result: None, loader: Any, *args: Any, **options: Any) -> None:
        self._made[loader] = self._log.place()

    def _on_pass(self, loader: Any) -> None:
        from torch.utils.data import IterableDataset
        from torch.utils.data.distributed import DistributedSampler

        if self._num_passes >= _MOST_PASSES:
            self._starting = None
            return
        self._num_passes += 1
        made = self._made.get(loader, Line())
        sampler = _sampler_of(loader)
        facts: dict[str, Any] = {
            "pass": self._num_passes,
            "made": [made.file, made.line],
            "dataset": type(loader.dataset).__name__,
            "data": self._log.number_of("dataset", loader.dataset) if _can_be_weak(loader.dataset) else -1,
            "is_iterable": isinstance(loader.dataset, IterableDataset),
            "num_workers": loader.num_workers,
            "batch_size": loader.batch_size or 0,
            "sampler": type(sampler).__name__,
            "trains": False,
            "indices": [],
            "samples": [],
            "rows": [],
            "shuffles": _shuffles(sampler),
            "repeats": _repeats(sampler),
            "is_own_sampler": not type(sampler).__module__.startswith("torch."),
            "code": _code_of(loader.dataset),
        }
        if isinstance(sampler, DistributedSampler):
            facts["replicas"], facts["replica"] = int(sampler.num_replicas), int(sampler.rank)
            facts["parts_again"] = _parts_again(loader)
            facts["num_padding"] = int(sampler.num_replicas) * len(sampler) - _length(sampler.dataset)
        facts = self._log.note(EventKind.LOADER, subject=self._log.number_of("loader", loader), **facts)
        self._starting = self._under_way[facts["pass"]] = facts
        iterator = getattr(loader, "_iterator", None)
        if iterator is not None:  # persistent workers: it begins again
            self._passes[iterator] = facts
        self._workers.begin_pass(loader, facts["pass"])

    def _on_iterator(self, iterator: Any, loader: Any) -> None:
        if self._starting is not None:
            self._passes[iterator] = self._starting
        self._starting = None

    def _on_index(self, index: Any, iterator: Any) -> None:
        facts = self._passes.get(iterator, self._starting)
        if facts is None or facts["is_iterable"]:
            return
        indices = index if isinstance(index, list) else [index]
        if len(facts["indices"]) < _MOST_INDICES and all(type(number) is int for number in indices):
            facts["indices"].extend(indices)

    def _watch_batches(self, iterators: Any) -> None:
        original = iterators.__next__

        @functools.wraps(original)
        def step(iterator: Any) -> Any:
            try:
                batch = original(iterator)
            except StopIteration:
                facts = self._passes.get(iterator)
                if facts is not None:
                    self._under_way.pop(facts["pass"], None)
                    self._log.note(EventKind.LOADER_END, **{"pass": facts["pass"]})
                raise
            self._on_batch(batch, iterator)
            return batch

        iterators.__next__ = step

    def _on_batch(self, batch: Any, iterator: Any) -> None:
        facts = self._passes.get(iterator)
        if facts is not None and len(facts["samples"]) < _MOST_BATCHES:
            facts["samples"].append(_digest(batch))
            if sum(map(len, facts["rows"])) < _MOST_ROWS:
                facts["rows"].append(_rows(batch))

    def _on_sampler(self, sampler: Any) -> None:
        from torch.utils.data.distributed import DistributedSampler

        is_own = type(sampler).__iter__ is not DistributedSampler.__iter__
        self._log.note(
            EventKind.SAMPLER,
            subject=self._log.number_of("sampler", sampler),
            shuffles=bool(sampler.shuffle) and not is_own,
            epoch=int(sampler.epoch),
            length=int(sampler.num_samples),
        )

    def _on_epoch(self, sampler: Any, epoch: int) -> None:
        self._log.note(EventKind.SET_EPOCH, subject=self._log.number_of("sampler", sampler))


def _sampler_of(loader: Any) -> Any:
    """Return what chooses the samples of a loader: its sampler, or that of its sampler of batches."""
    sampler = _first(loader, "batch_sampler", "sampler")
    for _ in range(4):
        inner = _first(sampler, "sampler", "batch_sampler")
        if inner is None or inner is sampler:
            break
        sampler = inner
    return sampler


def _parts_again(loader: Any) -> int:
    """Return into how many parts Accelerate deals out the batches of a loader, whatever its sampler does."""
    return int(getattr(getattr(loader, "batch_sampler", None), "num_processes", 1))


def _first(owner: Any, *names: str) -> Any:
    """Return the first of these attributes that is set; samplers may have no length, and so no truth."""
    return next((value for name in names if (value := getattr(owner, name, None)) is not None), None)


def _shuffles(sampler: Any) -> bool:
    from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler
    from torch.utils.data.distributed import DistributedSampler

    is_random = isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler)
    return is_random or (isinstance(sampler, DistributedSampler) and bool(sampler.shuffle))


def _repeats(sampler: Any) -> bool:
    """Return whether a sampler draws a sample again before it has drawn all others."""
    from torch.utils.data import RandomSampler, WeightedRandomSampler

    return isinstance(sampler, RandomSampler | WeightedRandomSampler) and bool(sampler.replacement)


def _length(data_set: Any) -> int:
    try:
        return len(data_set)
    except (TypeError, NotImplementedError):
        return 0


def _code_of(data_set: Any) -> list[Any]:
    """Return the file and line of the function that makes a sample."""
    for name in ("__getitem__", "__iter__"):
        code = getattr(getattr(type(data_set), name, None), "__code__", None)
        if code is not None and not is_library(code.co_filename):
            return [code.co_filename, code.co_firstlineno]
    return ["", 0]


def _can_be_weak(thing: Any) -> bool:
    try:
        hash(thing)
    except TypeError:
        return False
    return hasattr(thing, "__weakref__")


def _rows(batch: Any) -> list[int]:
    """Return a number for each sample of a batch; none if its parts do not all have one row per sample."""
    columns = _columns(batch)
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        return []
    return [zlib.crc32(repr([_digest(part) for part in row]).encode()) for row in zip(*columns, strict=True)]


def _columns(batch: Any, depth: int = 0) -> list[Any]:
    import torch

    if isinstance(batch, torch.Tensor):
        return [batch] if batch.dim() else []
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple) and depth < 3:
        if batch and all(isinstance(part, str | bytes) for part in batch):
            return [batch]
        return [column for part in batch for column in _columns(part, depth + 1)]
    return []


def _digest(batch: Any, depth: int = 0) -> int:
    """Return a number that tells batches apart by their contents, 0 for one without any."""
    import torch

    if isinstance(batch, torch.Tensor):
        if batch.device.type != "cpu" or batch.numel() == 0 or batch.layout != torch.strided:
            return 0
        flat = batch.detach().reshape(-1)
        if flat.dtype == torch.bfloat16:
            flat = flat.view(torch.int16)
        return zlib.crc32(flat[:_DIGESTED_BYTES].numpy().tobytes(), len(flat))
    if isinstance(batch, str | bytes | int | float):
        return zlib.crc32(repr(batch).encode())
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple) and depth < 4:
        digest = 0
        for part in batch[:64]:
            digest = zlib.crc32(str(_digest(part, depth + 1)).encode(), digest)
        return digest
    return 0
