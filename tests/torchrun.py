"""Scripts under torchrun without the wait: its agent, its rendezvous, its variables, but ranks forked from a server.

`torchrun(4, "train.py", "--steps", "3")` is `torchrun --standalone --nproc-per-node 4 train.py --steps 3`, except that
the agent does not start interpreters, each of which would take seconds to import torch. `torchrun_command` does.
`Torchrun` is a run that is under way, to be watched and disturbed.
"""

import faulthandler
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.forking import context

__all__ = ["Torchrun", "torchrun", "torchrun_command"]

_PATIENCE_SECONDS = 200.0
"""Shorter than any test waits."""

Done = subprocess.CompletedProcess[str]


def torchrun(num_ranks: int, script: str | Path, *arguments: str, timeout_s: float = 240.0) -> Done:
    """The script on that many ranks: its exit code, and what all ranks said."""
    with Torchrun(num_ranks, script, *arguments) as run:
        code = run.end(timeout_s)
        return subprocess.CompletedProcess(run.words, code, run.said("out"), run.said("err"))


def torchrun_command(num_ranks: int, script: str | Path, *arguments: str, timeout_s: float = 240.0) -> Done:
    """The same by the command itself, with an interpreter for each rank."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    return subprocess.run(
        [*command, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )


class Torchrun:
    """A run under way; use it as a context, which ends it."""

    def __init__(
        self,
        num_ranks: int,
        script: str | Path,
        *arguments: str,
        max_restarts: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.words = [str(script), *arguments]
        self._folder = tempfile.TemporaryDirectory()
        self._kept: dict[str, str] = {}
        # Ranks meet on the loopback interface, whatever this machine is called and whoever resolves its name.
        variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **(environment or {})}
        self._agent = context().Process(
            target=_be_agent, args=(num_ranks, self.words, max_restarts, variables, self._folder.name)
        )
        self._agent.start()

    def __enter__(self) -> "Torchrun":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """An agent that is asked to end takes its ranks with it."""
        if self._agent.exitcode is None:
            self._agent.terminate()
            self._agent.join(40)
            self._agent.kill()
            self._agent.join()
        self._kept = {kind: self.said(kind) for kind in ("out", "err")}
        self._folder.cleanup()

    @property
    def is_running(self) -> bool:
        return self._agent.exitcode is None

    def said(self, kind: str) -> str:
        """So far, by all ranks, on "out" or on "err", where the agent speaks too; also when it is over."""
        file = Path(self._folder.name) / kind
        return file.read_text(errors="replace") if file.exists() else self._kept.get(kind, "")

    def end(self, timeout_s: float = 240.0) -> int:
        """Wait for it; the exit code."""
        self._agent.join(timeout_s)
        code = self._agent.exitcode
        assert code is not None, f"{self.words} did not end within {timeout_s} s\n{self.said('err')[-4000:]}"
        return code


def _be_agent(num_ranks: int, words: list[str], max_restarts: int, variables: dict[str, str], folder: str) -> None:
    """What torch.distributed.run does with these flags."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _speak_into(Path(folder))
    os.environ.update(variables)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        start_method="fork",
        local_addr="localhost",  # else the agent asks for the name of this machine
    )
    elastic_launch(config, _be_rank)(words)


def _be_rank(words: list[str]) -> None:
    """What the interpreter does with a script."""
    import torch

    faulthandler.dump_traceback_later(_PATIENCE_SECONDS, file=sys.stderr)  # a rank that hangs says where
    torch.set_num_threads(1)
    _keep_process_groups()
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        if end.code not in (None, 0):
            raise
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.flush()
        sys.stderr.flush()


def _keep_process_groups() -> None:
    """Keep process groups that a script destroys until the process ends.

    DistributedDataParallel, which most scripts drop later, would free the last reference to a group while it holds
    Python's lock, and wait for gloo's thread, which needs the lock to free the last tensor: on a busy machine a rank
    that had done its work hung there.
    """
    import torch.distributed as dist

    destroy, kept = dist.destroy_process_group, []

    def destroy_process_group(*args: Any, **options: Any) -> None:
        kept.append(list(dist.distributed_c10d._world.pg_map))
        destroy(*args, **options)

    dist.destroy_process_group = destroy_process_group


def _speak_into(folder: Path) -> None:
    """Whoever writes from now on, Python or a library, here or in a process forked from here, writes there."""
    for stream, kind in ((sys.stdout, "out"), (sys.stderr, "err")):
        stream.flush()
        with (folder / kind).open("ab") as file:
            os.dup2(file.fileno(), stream.fileno())
