"""The capture store: keeps traces, so that no run is captured twice.

A capture depends on the script, its arguments and the device, not on how long anything takes. So the key of a capture
is a digest of those, of the modules that the script imports from its own directory, and of the code of the virtual
GPU; a change to the cost model leaves the stored captures valid. The launcher's variables are part of the key; files
that a script reads and the other variables of its environment are not.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from sandtable import native
from sandtable.errors import TraceError
from sandtable.launch import is_notebook, read_notebook
from sandtable.trace import Trace
from sandtable.trace.storage import VERSION
from sandtable.vgpu import Job

__all__ = ["CaptureStore"]

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class CaptureStore:
    """Traces in a directory, by default the user's cache, keyed by what they depend on.

    `import_roots` are directories besides the script's own whose modules count as its code.
    """

    directory: str | Path | None = None
    import_roots: tuple[Path, ...] = ()

    def path_of(self, job: Job) -> Path:
        """Return the file in which the capture of `job` is kept, or would be."""
        directory = native.cache_directory() / "captures" if self.directory is None else Path(self.directory)
        return directory / f"{self._key(job)}.sandtable"

    def find(self, job: Job) -> Trace | None:
        """Return the capture of `job`, if there is one; a damaged file is none."""
        path = self.path_of(job)
        try:
            return Trace.load(path) if path.exists() else None
        except TraceError:
            return None

    def keep(self, job: Job, trace: Trace) -> None:
        """Keep the capture of `job`."""
        path = self.path_of(job)
        path.parent.mkdir(parents=True, exist_ok=True)
        trace.save(path)

    def _key(self, job: Job) -> str:
        script, root = _module_file(job.script) if job.is_module else (Path(job.script), Path(job.script).parent)
        devices = [
            (group.kind.num_gpus, group.kind.device.name, group.kind.device.memory_bytes)
            for group in job.cluster.groups
        ]
        facts = (
            job.script if job.is_module else "",
            _script_digest(script, (root, *self.import_roots)),
            *job.script_args,
            job.is_module,
            job.world_size,
            job.nproc_per_node,
            job.num_steps,
            job.num_skipped_steps,
            job.step_marker,
            job.max_operators,
            job.ranks,
            job.few_ranks,
            job.num_epochs,
            job.follow_seconds,
            job.limits,
            job.routing,
            job.without,
            job.observes,
            _read(Path(job.costs)).digest if job.costs else "",
            *sorted(job.environment(0, master_port=0).items()),
            *job.leading_args(0, master_port=0),
            devices,
            VERSION,
            _virtual_gpu_digest(),
        )
        return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()[:24]


def _module_file(name: str) -> tuple[Path, Path]:
    """Return the file that `python -m name` runs, and the directory it is imported from; nothing is imported."""
    for root in map(Path, (os.getcwd(), *sys.path)):
        stem = root.joinpath(*name.split("."))
        for path in (stem / "__main__.py", stem.with_suffix(".py")):
            if path.is_file():
                return path, root
    return Path(name), Path(name).parent


def _script_digest(script: Path, import_roots: tuple[Path, ...]) -> str:
    """Digest the code of the script and of what it imports, as it is now."""
    state = hashlib.sha256()
    for source in _sources(script / "__main__.py" if script.is_dir() else script, import_roots):
        state.update(f"{source.name}\0{_read(source).digest}\0".encode())
    return state.hexdigest()


@dataclass(frozen=True, slots=True)
class _Source:
    """What matters of a source file: a digest of what it does, and the modules it imports."""

    digest: str
    imports: tuple[tuple[str, int], ...]


def _read(file: Path) -> _Source:
    """Parse the file, unless it is as it was the last time."""
    try:
        state = file.stat()
    except OSError:
        return _Source("", ())
    return _parse(file, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4096)
def _parse(file: Path, modified_ns: int, size: int) -> _Source:
    try:
        return _Source(hashlib.sha256(_code(file).encode()).hexdigest(), tuple(_imports(file)))
    except (SyntaxError, ValueError):  # the rank will say so
        return _Source(hashlib.sha256(file.read_bytes()).hexdigest(), ())


@cache
def _virtual_gpu_digest() -> str:
    """Digest the code that records a capture."""
    state = hashlib.sha256()
    for file in sorted((_PACKAGE / "vgpu").rglob("*")):
        if file.suffix == ".py":
            state.update(_code(file).encode())
        elif file.suffix in {".cpp", ".h"}:
            state.update(file.read_bytes())
    return state.hexdigest()


def _sources(script: Path, import_roots: tuple[Path, ...]) -> Iterable[Path]:
    """Return the script, and of the modules it imports, directly or not, those below one of the roots."""
    sources: dict[Path, None] = {}
    waiting = [script]
    while waiting:
        file = waiting.pop()
        if file in sources:
            continue
        sources[file] = None
        for name, level in _read(file).imports:
            roots = import_roots if level == 0 else (file.parents[level - 1],)
            for root in roots:
                stem = root.joinpath(*name.split(".")) if name else root / "__init__"
                waiting.extend(path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file())
    return sorted(sources)


def _code(file: Path) -> str:
    """Return the syntax tree without docstrings, so that words and layout may change."""
    tree = ast.parse(_text(file))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def _text(file: Path) -> str:
    """Return the Python in the file; a notebook's is in its cells."""
    if is_notebook(str(file)):
        return "\n".join(cell.source for cell in read_notebook(str(file)).cells)
    return file.read_text(encoding="utf-8")


def _imports(file: Path) -> Iterable[tuple[str, int]]:
    """Yield the modules that the file names in imports, with the number of dots before relative ones."""
    for node in ast.walk(ast.parse(_text(file))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = f"{node.module}." if node.module else ""
            yield prefix.rstrip("."), node.level
            yield from ((f"{prefix}{alias.name}", node.level) for alias in node.names)
