"""Imports: a script's libraries, imported once for all ranks instead of once per rank.

The first rank logs which modules its script imports before it makes a process group, and what the imports could see
(`ImportLog`). A template, a process that is a rank up to the first line of the script, imports them again
(`import_again`), and the ranks that follow are forked from it. That is right if an import does the same on every rank
and leaves nothing behind that a fork does not copy or that ranks must not share. So a module is left out if its import
reads a variable or an argument that differs between ranks, and the template is given up if the imports started a thread
or a process, opened a file or a socket, used the GPU, made a process group, moved a random generator, or wrote anything
but text. Asking what kind of GPU there is does no harm where all ranks have the same.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

__all__ = ["ARGUMENTS", "DEVICES", "ImportLog", "ImportedModule", "UnsafeImportError", "import_again"]

ARGUMENTS = "sys.argv"
"""Stands for the script's arguments among the names of variables that differ between ranks."""

DEVICES = "torch.cuda"
"""The same for GPUs."""

_importlib: Any = importlib._bootstrap

_FORK_SAFE_THREADS = {"jemalloc_bg_thd"}

F = TypeVar("F", bound=Callable[..., Any])


def _in_importlib(function: F) -> F:
    """Have tracebacks leave the function out, as they do with importlib's own."""
    code: Any = function.__code__
    function.__code__ = code.replace(co_filename=_importlib._find_and_load.__code__.co_filename)
    return function


class ImportedModule(NamedTuple):
    """A module that a script imported, and what its import saw: variables the process had changed, and the path."""

    name: str
    seconds: float
    changed_variables: tuple[tuple[str, str | None], ...]
    path: tuple[str, ...]


class UnsafeImportError(Exception):
    """Imports that ranks cannot share; the message is the reason."""


@dataclass(slots=True, eq=False)
class _Import:
    """An import that runs or has run, and the imports inside it."""

    name: str
    variables: dict[bytes, bytes]
    path: tuple[str, ...]
    start: float
    seconds: float | None = None
    """None while it runs."""
    has_failed: bool = False
    differs: bool = False
    """Whether it read a variable or an argument that differs between ranks."""
    children: list[_Import] = field(default_factory=list)


class ImportLog:
    """Logs the imports of this process's main thread, from `start` to `finish`."""

    def __init__(self, rank_variables: Iterable[str]) -> None:
        self._rank_variables = frozenset(rank_variables)
        self._initial = _variables()
        self._root = _Import("", self._initial, (), 0.0)
        self._running = [self._root]
        self._find_and_load: Callable[..., Any] = _importlib._find_and_load

    def start(self) -> None:
        """Begin to log."""
        _importlib._find_and_load = self._logged
        _watch(self._rank_variables, self._on_read)

    def finish(self) -> tuple[ImportedModule, ...]:
        """Stop and return the modules whose import does the same on every rank, in order.

        A package with a part that reads which rank it is on is left out, but what it imports from elsewhere is not.
        """
        _importlib._find_and_load = self._find_and_load
        _unwatch()
        left_out = {_package(node.name) for node in _descendants(self._root) if node.differs}
        return tuple(
            ImportedModule(node.name, node.seconds or 0.0, _changes(self._initial, node.variables), node.path)
            for node in _outermost_shareable(self._root, left_out)
        )

    @_in_importlib
    def _logged(self, name: str, import_: Any) -> Any:
        """Import a module in place of importlib's own function, which every import of a new module calls."""
        if name in sys.modules or threading.current_thread() is not threading.main_thread():
            return self._find_and_load(name, import_)
        node = _Import(name, _variables(), tuple(sys.path), time.monotonic())
        self._running[-1].children.append(node)
        self._running.append(node)
        try:
            return self._find_and_load(name, import_)
        except BaseException:
            node.has_failed = True
            raise
        finally:
            self._running.pop()
            node.seconds = time.monotonic() - node.start

    def _on_read(self, variable: str) -> None:
        for node in self._running:
            node.differs = True


def import_again(modules: Sequence[ImportedModule], *, rank_variables: Iterable[str]) -> None:
    """Import these modules in this process, under the conditions of the first time; raise UnsafeImportError."""
    before = _ProcessState.now()
    differing = frozenset(rank_variables)
    reads: list[str] = []
    _watch(differing, reads.append)
    try:
        for module in modules:
            try:
                with _conditions_of(module):
                    importlib.import_module(module.name)
            except Exception as error:
                raise UnsafeImportError(f"importing {module.name} again fails: {error!r}") from error
            if reads:
                raise UnsafeImportError(f"importing {module.name} reads {reads[0]}")
    finally:
        _unwatch()
    before.require_unchanged(devices_differ=DEVICES in differing)


@contextmanager
def _conditions_of(module: ImportedModule) -> Iterator[None]:
    """Have the variables and the path of the first import; keep only what the import itself changes."""
    variables = {name: os.environ.get(name) for name, _ in module.changed_variables}
    path = list(sys.path)
    for name, value in module.changed_variables:
        _set_variable(name, value)
    sys.path[:] = module.path
    yield
    sys.path[:] = path + [place for place in sys.path if place not in module.path]
    for name, value in module.changed_variables:
        if os.environ.get(name) == value:
            _set_variable(name, variables[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProcessState:
    """What an import must leave as it is."""

    threads: frozenset[str]
    has_children: bool
    files: frozenset[str]
    directory: str
    random_states: Mapping[str, object]

    @classmethod
    def now(cls) -> _ProcessState:
        return cls(
            threads=frozenset(_threads()),
            has_children=_has_children(),
            files=frozenset(_open_files()),
            directory=os.getcwd(),
            random_states=_random_states(),
        )

    def require_unchanged(self, *, devices_differ: bool) -> None:
        now = _ProcessState.now()
        changed = [name for name, state in now.random_states.items() if self.random_states.get(name, state) != state]
        torch = sys.modules.get("torch")
        is_used = torch is not None and torch.cuda.is_initialized()
        rules = {
            "start a thread": now.threads - self.threads,
            "start a process": now.has_children,
            f"open {', '.join(sorted(now.files - self.files))}": now.files - self.files,
            "change the working directory": now.directory != self.directory,
            f"draw from the generator of {', '.join(changed)}": changed,
            "use the GPU": is_used and torch is not None and torch.cuda.memory_reserved(),
            "ask for the GPU, and ranks have different ones": is_used and devices_differ,
            "make a process group": torch is not None and torch.distributed.is_initialized(),
        }
        broken = [rule for rule, is_broken in rules.items() if is_broken]
        if broken:
            raise UnsafeImportError(f"the imports {broken[0]}")


def _outermost_shareable(node: _Import, left_out: set[str]) -> Iterator[_Import]:
    for child in node.children:
        if child.has_failed:
            continue
        if child.differs or child.seconds is None:
            yield from _outermost_shareable(child, left_out)
        elif _package(child.name) not in left_out:
            yield child


def _descendants(node: _Import) -> Iterator[_Import]:
    for child in node.children:
        yield child
        yield from _descendants(child)


def _package(name: str) -> str:
    return name.partition(".")[0]


def _variables() -> dict[bytes, bytes]:
    """Return the environment, without a read that `_watch` would see."""
    return dict(os.environ._data)  # type: ignore[attr-defined]


def _changes(before: dict[bytes, bytes], after: dict[bytes, bytes]) -> tuple[tuple[str, str | None], ...]:
    changed = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    return tuple((os.fsdecode(name), os.fsdecode(after[name]) if name in after else None) for name in changed)


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _threads() -> Iterator[str]:
    """Yield the number of each thread, except those that a library starts anew after a fork."""
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/comm") as file:
            if file.read().strip() not in _FORK_SAFE_THREADS:
                yield thread


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _open_files() -> Iterator[str]:
    """Yield what the process has open, except devices such as /dev/null."""
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:  # the listing itself
            continue
        if not target.startswith("/dev/"):
            yield target


def _random_states() -> dict[str, object]:
    states: dict[str, object] = {"random": random.getstate()}
    if "numpy.random" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"] = (kind, keys.tobytes(), *rest)
    if "torch" in sys.modules:
        states["torch"] = sys.modules["torch"].get_rng_state().numpy().tobytes()
    return states


class _WatchedArguments(list[str]):
    """`sys.argv`; `on_read` is called when anything but the script's name is read."""

    on_read: Callable[[str], object] | None = None

    def __getitem__(self, place: Any) -> Any:
        if self.on_read is not None and place != 0:
            self.on_read(ARGUMENTS)
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[str]:
        return iter(self[:])

    def __contains__(self, argument: object) -> bool:
        return argument in self[:]


def _watch(names: frozenset[str], on_read: Callable[[str], object]) -> None:
    """Call `on_read` with the name when one of these variables is read, but not where all variables are copied."""
    copying: list[tuple[int, int]] = []

    def instruction() -> tuple[int, int]:
        frame = sys._getframe(2)
        return id(frame), frame.f_lasti

    class WatchedEnviron(os._Environ[str]):
        def __getitem__(self, name: str) -> str:
            if name in names and instruction() not in copying:
                on_read(name)
            return super().__getitem__(name)

        def keys(self) -> KeysView[str]:
            copying[:] = [instruction()]  # dict(os.environ) asks for the keys and the values in one instruction
            return super().keys()

        def items(self) -> ItemsView[str, str]:
            return dict(self).items()

    os.environ.__class__ = WatchedEnviron
    if ARGUMENTS in names:
        if not isinstance(sys.argv, _WatchedArguments):
            sys.argv = _WatchedArguments(sys.argv)  # for good, since modules may keep it
        sys.argv.on_read = on_read


def _unwatch() -> None:
    os.environ.__class__ = os._Environ
    if isinstance(sys.argv, _WatchedArguments):
        sys.argv.on_read = None
