"""The template of a launch: a prepared rank that has imported the script's libraries, from which ranks are forked."""

import os
import pickle
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sandtable.vgpu.fork_protocol import MODULES_FILE
from sandtable.vgpu.imports import import_again
from sandtable.vgpu.rank import PreparedRank, Runtime
from sandtable.vgpu.rank_channel import RankChannel
from sandtable.vgpu.settings import RankTask, ScriptSettings
from sandtable.vgpu.turns import Turn

__all__ = ["make_template"]


def make_template(task: RankTask, script: ScriptSettings, runtime: Runtime, turn: Turn, directory: str) -> PreparedRank:
    """Make this process the template; raise UnsafeImportError if ranks cannot share the imports."""
    modules = pickle.loads(Path(directory, MODULES_FILE).read_bytes())
    unanswered, far_end = socket.socketpair()
    far_end.close()  # An import that asks the launcher anything fails, and is not shared.
    with _turn(turn), _redirected(1) as out, _redirected(2) as err:
        template = PreparedRank.prepare(task, script, runtime, RankChannel(unanswered, task.settings.rank, turn))
        import_again(modules, rank_variables=script.rank_variables)
        sys.stdout.flush()
        sys.stderr.flush()
        return replace(template, printed=(_content(out), _content(err)))


@contextmanager
def _turn(turn: Turn) -> Iterator[None]:
    turn.begin()
    try:
        yield
    finally:
        turn.end()


@contextmanager
def _redirected(descriptor: int) -> Iterator[int]:
    """Write what goes to the descriptor into a file in memory."""
    kept, file = os.dup(descriptor), os.memfd_create("printed")
    os.dup2(file, descriptor)
    try:
        yield file
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
        os.close(file)


def _content(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)
