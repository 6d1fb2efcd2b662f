"""Runs a test's body on virtual GPUs.

A test marked `@on_gpu()` is not called where pytest is: torch must be loaded after the core. A rank is launched
instead, as `sandtable run` would, and its script (this file) calls the test by name; `@on_gpu(ranks=4)` launches four.
A test that looks at the trace calls `rehearse(function)` itself. All launches of a session share one launcher, so
that torch is loaded once and a test costs a fork.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, ParamSpec
from unittest import mock

import pytest

from sandtable.cluster import load as load_cluster
from sandtable.errors import SandtableError, ScriptError
from sandtable.events import Event, RankPrinted
from sandtable.trace import Note, Trace
from sandtable.vgpu import Job, Launcher, Routing, use_launcher

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60
MANY_STEPS = 1000
_ENTRY = "tests.vgpu.virtual_entry"

P = ParamSpec("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What a launch left behind: the trace, and what ranks printed as (rank, text)."""

    trace: Trace
    out: list[tuple[int, str]]
    err: list[tuple[int, str]]

    def notes(self, kind: str) -> list[Note]:
        return [note for note in self.trace.notes if note.kind == kind]


def rehearse(
    function: Callable[..., object],
    *,
    ranks: int = 1,
    cluster: str = "dgx-a100",
    steps: int = MANY_STEPS,
    max_operators: int = 1_000_000,
    marker: str = "",
    routing: str = "balanced",
    captured: Literal["all", "auto"] = "all",
    arguments: dict[str, Any] | None = None,
) -> Rehearsal:
    """Calls a function of a test module on every rank of a small world, or on a few that stand for the others."""
    name = ".".join(Path(function.__code__.co_filename).relative_to(ROOT).with_suffix("").parts)
    kept = _Kept()
    job = Job(
        script=__file__,
        script_args=(name, function.__qualname__, pickle.dumps(arguments or {}).hex()),
        world_size=ranks,
        nproc_per_node=ranks,
        cluster=load_cluster(cluster, nodes=1),
        num_steps=steps,
        max_operators=max_operators,
        step_marker=marker,
        ranks=captured,
        routing=Routing.parse(routing),
    )
    with on_shared_launcher() as launcher:
        try:
            trace = launcher.launch(job, listen=kept)
        except ScriptError as error:
            printed = "\n".join(f"[rank {rank}] {text}" for rank, text in kept.err)
            raise ScriptError(error.findings[0], f"{error.traceback}\n{printed}", error.exit_code) from None
    return Rehearsal(trace=trace, out=kept.out, err=kept.err)


def on_gpu(
    *, ranks: int = 1, cluster: str = "dgx-a100", routing: str = "balanced"
) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """The test's body runs on virtual GPUs, on every rank; what fails there fails here."""

    def mark(function: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(function)
        def test(*args: P.args, **kwargs: P.kwargs) -> None:
            problem = ""
            try:
                rehearse(function, ranks=ranks, cluster=cluster, routing=routing, arguments=kwargs)
            except SandtableError as error:
                problem = str(error)
            if problem:
                pytest.fail(problem, pytrace=False)

        return test

    return mark


class _Kept:
    """Keeps what ranks print."""

    def __init__(self) -> None:
        self.out: list[tuple[int, str]] = []
        self.err: list[tuple[int, str]] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, RankPrinted):
            (self.err if event.is_error else self.out).append((event.rank, event.text))


@functools.cache
def shared_launcher() -> Launcher:
    """The launcher of all tests in this process; its fork server ends with the process."""
    launcher = Launcher(runtime=_ENTRY)
    atexit.register(launcher.close)
    return launcher


@contextmanager
def on_shared_launcher() -> Iterator[Launcher]:
    """Launches inside the block use the one fork server. Ranks can import test modules."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    with mock.patch.dict(os.environ, PYTHONPATH=paths), use_launcher(shared_launcher()) as launcher:
        yield launcher


def _called() -> None:
    """In the rank: finds the function, and calls it."""
    import faulthandler

    faulthandler.enable()
    faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
    module_name, function_name, packed = sys.argv[1:]
    function = getattr(importlib.import_module(module_name), function_name)
    try:
        getattr(function, "__wrapped__", function)(**pickle.loads(bytes.fromhex(packed)))
    except Exception as error:
        _show_locals(error)
        raise


def _show_locals(error: Exception) -> None:
    at = error.__traceback__
    found = {}
    while at is not None:
        if str(ROOT / "tests") in at.tb_frame.f_code.co_filename and at.tb_frame.f_code.co_filename != __file__:
            found = at.tb_frame.f_locals
        at = at.tb_next
    for name, value in found.items():
        try:
            text = repr(value)
        except Exception as problem:
            text = f"(no repr: {problem})"
        print(f"    {name} = {text[:300]}", file=sys.stderr)


if __name__ == "__main__":
    _called()
