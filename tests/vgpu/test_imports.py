"""Ranks after the first share the imports of the script's libraries, unless an import depends on the rank."""

import os
import textwrap
from pathlib import Path

import pytest
from tests.vgpu.capturing import EXAMPLES
from tests.vgpu.test_launcher import Seen, _importable, digests, job, launch, ours, write
from tests.vgpu.virtual import on_shared_launcher

from sandtable.errors import ScriptError
from sandtable.launch import parse_command

__all__ = ["_importable", "write"]

WORLD_SIZE = 4
SLOW = """
import os, sys, time
with open(os.path.join(os.path.dirname(__file__), "imports.log"), "a") as log:
    log.write(".")
end = time.process_time() + 0.4
while time.process_time() < end:
    pass
"""
USE = "import library\ndist.init()\n"


@pytest.fixture
def library(tmp_path):
    """Write a library whose import takes a while; return how many times it was imported by a launch."""

    def library(body: str = "") -> "Library":
        (tmp_path / "library.py").write_text(SLOW + textwrap.dedent(body))
        return Library(tmp_path / "imports.log")

    return library


class Library:
    def __init__(self, log: Path) -> None:
        self._log = log

    @property
    def num_imports(self) -> int:
        return len(self._log.read_text())


def printed(script: str, *args: object, **fields) -> list[tuple[int, str]]:
    seen = Seen()
    launch(job(script, *args, world=WORLD_SIZE, ranks="all", **fields), listen=seen)
    return sorted((rank, text) for rank, text, _ in seen.lines)


def test_a_library_is_imported_by_the_first_rank_and_then_once_for_all(library, write):
    slow = library("print('imported')")
    script = write(USE + "print(dist.rank, os.environ['LOCAL_RANK'], os.environ['WORLD_SIZE'])")
    lines = printed(script)
    assert slow.num_imports == 2
    assert lines == sorted((rank, text) for rank in range(4) for text in ("imported", f"{rank} {rank} 4"))


def test_ranks_do_not_see_what_other_ranks_do_to_a_shared_module(library, write):
    library("names = []")
    lines = printed(write(USE + "library.names.append(rank)\nprint(library.names)"))
    assert lines == [(rank, f"[{rank}]") for rank in range(4)]


def test_a_launch_may_do_without(library, write):
    slow = library()
    printed(write(USE), share_imports=False)
    assert slow.num_imports == WORLD_SIZE


def test_a_library_that_reads_which_rank_it_is_on_is_imported_by_every_rank(library, write):
    slow = library("rank = os.environ['RANK']")
    lines = printed(write(USE + "print(library.rank)"))
    assert slow.num_imports == WORLD_SIZE
    assert lines == [(rank, str(rank)) for rank in range(4)]


def test_ranks_share_imports_though_a_launcher_gives_each_its_own_arguments(library, write):
    slow = library("name = os.path.basename(sys.argv[0])")
    script = write(USE + "print(sys.argv[1:])")
    command = parse_command(["python", "-m", "torch.distributed.launch", "--nproc_per_node", "4", script, "--lr", "1"])
    lines = printed(script, "--lr", 1, launcher_environment=command.environment)
    assert slow.num_imports == 2
    assert lines == [(rank, f"['--local-rank={rank}', '--lr', '1']") for rank in range(4)]


@pytest.mark.parametrize("read", ["sys.argv[1]", "list(sys.argv)[1]", "'--local-rank=3' in sys.argv"])
def test_a_library_that_reads_arguments_of_its_own_rank_is_imported_by_every_rank(library, write, read):
    slow = library(f"read = {read}")
    script = write(USE + f"assert library.read == ({read}), library.read")
    command = parse_command(["python", "-m", "torch.distributed.launch", "--nproc_per_node", "4", script])
    printed(script, launcher_environment=command.environment)
    assert slow.num_imports == WORLD_SIZE


def test_what_such_a_library_imports_from_elsewhere_is_shared(library, write, tmp_path):
    slow = library()
    (tmp_path / "framework.py").write_text("import os, library\nrank = os.environ.get('RANK')")
    lines = printed(write("import framework\ndist.init()\nprint(framework.rank)"))
    assert slow.num_imports == 2
    assert lines == [(rank, str(rank)) for rank in range(4)]


@pytest.mark.parametrize(
    "body",
    [
        "import threading; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "import subprocess; process = subprocess.Popen(['sleep', '60'])",
        "import socket; listener = socket.create_server(('127.0.0.1', 0))",
        "import tempfile; kept = tempfile.TemporaryFile()",
        "import random; first = random.random()",
        "os.chdir('/')",
    ],
    ids=["thread", "process", "socket", "file", "random", "directory"],
)
def test_imports_that_a_fork_would_not_copy_are_not_shared(library, write, body):
    slow = library(body)
    printed(write("import library\ndist.new_group((rank,), 'own')"))
    assert slow.num_imports == WORLD_SIZE + 1  # the template tried


def test_an_import_sees_what_the_script_did_to_the_environment_and_the_path(library, write, tmp_path):
    slow = library("import addon\nmode = os.environ.get('MODE'), addon.name\nos.environ['SEEN'] = '1'")
    (tmp_path / "addons").mkdir()
    (tmp_path / "addons" / "addon.py").write_text("name = 'addon'")
    before = "print('MODE' in os.environ, len([p for p in sys.path if p.endswith('addons')]))\n"
    changes = f"os.environ['MODE'] = 'fast'\nsys.path.insert(0, {str(tmp_path / 'addons')!r})\n"
    lines = printed(write(before + changes + USE + "print(library.mode, os.environ['SEEN'])"))
    assert slow.num_imports == 2
    assert lines == sorted((rank, text) for rank in range(4) for text in ("False 0", "('fast', 'addon') 1"))


def test_a_first_rank_that_waits_for_others_before_it_makes_a_group_does_not_wait_forever(library, write, tmp_path):
    library()
    flag = tmp_path / "flag"
    wait = f"""
        import library
        if rank == 1:
            open({str(flag)!r}, "w").close()
        while not os.path.exists({str(flag)!r}):
            time.sleep(0.05)
        dist.init()
    """
    assert printed(write(textwrap.dedent(wait))) == []


def test_a_failed_import_is_the_scripts_failure(library, write):
    library("raise ValueError('broken library')")
    with pytest.raises(ScriptError) as caught:
        launch(job(write(USE), world=WORLD_SIZE, ranks="all"))
    assert "broken library" in caught.value.traceback
    assert "sandtable" not in caught.value.traceback


def test_nothing_is_left_of_a_launch_with_shared_imports(library, write, monkeypatch):
    library()
    monkeypatch.setenv("SANDTABLE_TEST_MARKER", f"imports-{os.getpid()}")
    body = USE + "import subprocess; subprocess.Popen(['sleep', '60']); sys.exit(rank == 2)"
    with pytest.raises(ScriptError):
        launch(job(write(body), world=WORLD_SIZE, ranks="all"))
    assert ours(f"SANDTABLE_TEST_MARKER=imports-{os.getpid()}") == []


def test_ranks_record_the_same_with_and_without_shared_imports(library, tmp_path):
    slow = library(
        """
        import torch

        NAME = torch.cuda.get_device_name(0)  # asking what GPU there is does no harm

        @torch.compile
        def twice(x):
            return x * 2

        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return twice(x)

            @staticmethod
            def backward(ctx, grad):
                return grad * 2

        apply = Twice.apply
        """
    )
    script = tmp_path / "train.py"
    script.write_text(
        f"import sys\nsys.path.append({str(EXAMPLES)!r})\nimport library, runpy, torch\n"
        "x = library.apply(torch.ones(3, requires_grad=True)).sum().backward()\n"
        f"runpy.run_path({str(EXAMPLES / 'gpt_ddp.py')!r}, run_name='__main__')\n"
    )
    with on_shared_launcher() as launcher:
        shared, unshared = (
            launcher.launch(job(str(script), "--size", "tiny", world=WORLD_SIZE, ranks="all", share_imports=share))
            for share in (True, False)
        )
    assert slow.num_imports == 2 + WORLD_SIZE
    assert digests(shared) == digests(unshared)
    assert {note.kind for note in shared.notes} == {note.kind for note in unshared.notes}
