"""Captures: the trace of a row, made once and kept.

A capture depends on the script, its flags and the device, not on how long anything takes. So it is kept in the cache
under a name made of those, and a change of the cost model costs only the simulation.
"""

import ast
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache as remember
from pathlib import Path

from sandtable import native
from sandtable.cluster import Cluster, load
from sandtable.trace import Trace
from sandtable.trace.storage import VERSION
from sandtable.validation.rows import Row, RowSet
from sandtable.vgpu import Job, core_path, launch
from sandtable.vgpu.classes import Limits

__all__ = ["Capture", "cache_directory", "cluster_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The trace of one row: where it is kept, and how to make it.

    `max_samples` ranks of a class are run only to verify that they do the same; the scripts here are known to be
    regular, so by default none is.
    """

    job: Job
    path: Path

    @classmethod
    def of(cls, row_set: RowSet, row: Row, *, cache: Path, max_samples: int = 0) -> "Capture":
        """Where the capture of `row` is, or will be."""
        cluster = cluster_of(row_set, row)
        job = Job(
            script=str(row_set.script),
            script_args=row.args,
            world_size=row.gpus,
            nproc_per_node=min(row.gpus, cluster.gpus_per_node),
            cluster=cluster,
            num_steps=row_set.num_steps,
            max_operators=100_000_000,
            limits=Limits(max_samples=max_samples),
        )
        return cls(job=job, path=cache / "captures" / f"{_digest(job)}.sandtable")

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def trace(self) -> Trace:
        """The kept trace, or a new one."""
        if not self.exists:
            self.make()
        return Trace.load(self.path)

    def make(self) -> Trace:
        """Rehearse the row, and keep the trace."""
        trace = launch(replace(self.job, core_path=str(core_path())))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        trace.save(self.path)
        return trace


def cluster_of(row_set: RowSet, row: Row) -> Cluster:
    """As many nodes of the set's machine as the row needs."""
    return _load(row_set.cluster, -(-row.gpus // _load(row_set.cluster, 1).gpus_per_node))


@remember
def _load(name: str, nodes: int) -> Cluster:
    return load(name, nodes=nodes)


def cache_directory() -> Path:
    """Where captures and predictions are kept: beside the built libraries."""
    return native.cache_directory() / "validation"


def _digest(job: Job) -> str:
    """Equal for equal captures: the script's code and that of what it imports, flags, ranks, device, trace version."""
    device = job.cluster.device
    facts = (
        _script_digest(Path(job.script)),
        *job.script_args,
        job.world_size,
        job.nproc_per_node,
        job.num_steps,
        job.cluster.gpus_per_node,
        device.name,
        device.memory_bytes,
        VERSION,
    )
    return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()[:24]


@remember
def _script_digest(script: Path) -> str:
    """Of the script and what it imports; read once in a process."""
    state = hashlib.sha256()
    for source in _sources(script):
        state.update(f"{source.name}\0{_code(source)}\0".encode())
    return state.hexdigest()


def _sources(script: Path) -> Iterable[Path]:
    """The script, and of the modules it imports, directly or not, those that lie beside it or in examples."""
    places = (script.parent, script.resolve().parents[2] / "examples")
    found: dict[str, Path] = {}
    waiting = [script]
    while waiting:
        file = waiting.pop()
        if file.name in found:
            continue
        found[file.name] = file
        for name in _imports(file):
            waiting.extend(place / f"{name}.py" for place in places if (place / f"{name}.py").is_file())
    return [found[name] for name in sorted(found)]


def _code(file: Path) -> str:
    """What the file does: its syntax tree without docstrings, so that words and layout may change."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def _imports(file: Path) -> Iterable[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
