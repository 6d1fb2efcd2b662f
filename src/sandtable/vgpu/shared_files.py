"""Files that ranks make and remove, where ranks run one after another (`--ranks auto`).

On the cluster a rank may rely on a file that another one made before a barrier and removed after it, such as the
temporary directory of a checkpoint; a rank that runs later would not find it. So it is put back when the rank that
removed it has ended, and taken away again when all have. What was made and removed between two collectives (a lock
file) is nobody else's business. A rank that runs a second time would find the checkpoints of its first run: they are
removed before.
"""

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from sandtable.units import MIB
from sandtable.vgpu.protocol import FilesMade, FilesRemoved, RemovedFile
from sandtable.vgpu.rank_channel import RankChannel

__all__ = ["FileWatcher", "SharedFiles"]

_MAX_BYTES = MIB
"""Larger files are put back with their size, and without their contents."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_SYSTEM = ("/dev/", "/proc/", "/sys/")


class FileWatcher:
    """On the rank: follows files by the audit events of Python, and reports those that others may look for."""

    def __init__(self, core: ModuleType, channel: RankChannel) -> None:
        self._core = core
        self._channel = channel
        self._made: dict[str, int] = {}
        """The collectives that the rank had called when it made a file or a directory, by its path."""
        self._is_watching = True

    def install(self) -> None:
        """Watch what the script does with files from now on."""
        handlers: dict[str, Callable[..., object]] = {
            "os.mkdir": lambda path, mode, directory=-1: self._note_made(path, directory),
            "open": lambda path, mode, flags: self._note_made(path) if flags & _WRITES else None,
            "os.rename": self._note_renamed,
            "os.remove": self._note_removed,
            "os.rmdir": self._note_removed,
            "shutil.rmtree": self._note_removed,
        }

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            if self._is_watching:
                handlers[event](*arguments)

        self._core.watch_audit_events(list(handlers), watch)

    def stop(self) -> None:
        """Watch no more, at the end of the script: files from here on are not its own."""
        self._is_watching = False

    def _note_made(self, path: Any, directory: int = -1) -> None:
        name = _absolute(path, directory)
        if name and not os.path.lexists(name):
            self._add_made([name])

    def _note_renamed(self, source: Any, target: Any, source_directory: int = -1, target_directory: int = -1) -> None:
        old, new = _absolute(source, source_directory), _absolute(target, target_directory)
        names = self._note_removed(source, source_directory)
        if new and names:
            self._add_made([new + name.removeprefix(old) for name in names])

    def _add_made(self, names: list[str]) -> None:
        num_calls = self._core.num_calls()
        self._made.update(dict.fromkeys(names, num_calls))
        if num_calls and not self._channel.is_forked:
            self._channel.report(FilesMade(tuple(names)))

    def _note_removed(self, path: Any, directory: int = -1) -> list[str]:
        """Report those that were there during a collective; return all that are removed."""
        top = _absolute(path, directory)
        names = [name for name in self._made if name == top or name.startswith(f"{top}{os.sep}")] if top else []
        num_calls = self._core.num_calls()
        shared = [name for name in names if self._made.pop(name) < num_calls]
        files = tuple(_described(name) for name in sorted(shared) if os.path.lexists(name))
        if files and not self._channel.is_forked:
            self._channel.report(FilesRemoved(files))
        return names


class SharedFiles:
    """In the launcher: files that ranks have made, and those that ranks which have ended had removed."""

    def __init__(self) -> None:
        self._made: dict[int, set[str]] = defaultdict(set)
        self._removed: dict[str, RemovedFile] = {}
        self._restored: set[str] = set()

    @property
    def are_contended(self) -> bool:
        """Whether ranks put files in the same places, where no barrier keeps them apart."""
        return bool(self._removed)

    @property
    def has_made(self) -> bool:
        """Whether ranks have made files that others may look for."""
        return any(self._made.values())

    def add_made(self, rank: int, paths: Iterable[str]) -> None:
        """Add what a rank has made."""
        self._made[rank].update(paths)

    def add_removed(self, removed: Iterable[RemovedFile]) -> None:
        """Add what a rank that has ended had removed."""
        self._removed.update((path, (path, content)) for path, content in removed)

    def forget(self, ranks: Iterable[int]) -> None:
        """Remove what these ranks have made, before they run again."""
        for path in sorted(set().union(*(self._made.pop(rank, ()) for rank in ranks)), reverse=True):
            with suppress(OSError):
                os.rmdir(path) if os.path.isdir(path) else os.remove(path)

    def restore(self) -> None:
        """Put back what ranks that follow may look for."""
        for path, content in sorted(self._removed.values(), key=lambda file: file[0]):
            with suppress(OSError):
                if not os.path.lexists(path) and _restore(Path(path), content):
                    self._restored.add(path)

    def remove(self) -> None:
        """Remove all that was put back."""
        for path in sorted(self._restored, reverse=True):
            with suppress(OSError):
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
        self._removed.clear()
        self._restored.clear()


def _absolute(path: Any, directory: int) -> str:
    """Return the absolute path; empty if it is relative to an open directory, or not of a file on a disk."""
    if isinstance(path, int) or (directory is not None and directory >= 0):
        return ""
    name = os.path.abspath(os.fsdecode(path))
    return "" if name.startswith(_SYSTEM) else name


def _described(path: str) -> RemovedFile:
    if os.path.isdir(path):
        return path, None
    size = os.path.getsize(path)
    return path, size if size > _MAX_BYTES else Path(path).read_bytes()


def _restore(path: Path, content: bytes | int | None) -> bool:
    """Make the file or directory; return False if its parent is not there."""
    if not path.parent.is_dir():
        return False
    if content is None:
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.touch()
        os.truncate(path, content)
    return True
