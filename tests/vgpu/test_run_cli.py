"""`sandtable run` as a user types it: flags, environment, exit codes, bad input, and what it leaves behind."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from unittest import mock

import pytest
from tests.vgpu.virtual import ROOT, on_shared_launcher

from sandtable import load
from sandtable.cli import main
from sandtable.trace import FILE_NAME, Trace

HEAD = """
import os, sys
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
"""
TRAIN = (
    HEAD
    + """
dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    model(torch.rand(8, 256, device="cuda")).sum().backward()
    optimizer.step()
"""
)


@dataclass(frozen=True)
class Done:
    """How a run ended."""

    code: int
    out: str
    err: str


class Place:
    """A directory to run scripts in. `run` calls the command line here, with the launcher that all tests share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, text: str, name: str = "train.py") -> str:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return str(path)

    def run(self, *arguments: str) -> Done:
        out, err = io.StringIO(), io.StringIO()
        code = 0
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            mock.patch.object(sys, "argv", ["sandtable", "run", *arguments]),
            on_shared_launcher(),
        ):
            try:
                main()
            except SystemExit as left:
                code = int(left.code or 0)
        return Done(code, out.getvalue(), err.getvalue())

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The same in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-c", "from sandtable.cli import main; main()", "run", *arguments],
            cwd=self.directory,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def leftovers(self) -> list[str]:
        """Other processes that work in the directory."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if Path(os.readlink(entry / "cwd")) == self.directory:
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found

    @property
    def trace(self) -> Path:
        return self.directory / "sandtable-out" / FILE_NAME


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    return Place(tmp_path)


def assert_clean_failure(place: Place, done: Done, code: int = 1, *, rule: str = "") -> None:
    """A failed run ends cleanly; with `rule` it leaves that finding, otherwise it never began and leaves nothing."""
    assert done.code == code, done.err
    assert place.leftovers() == []
    if rule:
        assert [finding.rule for finding in load(place.trace.parent).findings] == [rule]
        assert f"error {rule}" in done.err
        assert {path.name for path in place.trace.parent.iterdir()} == {FILE_NAME, "report.html", "summary.json"}
    else:
        assert not place.trace.exists()
    for ours in ("sandtable/cli/", "sandtable/vgpu/", "runpy", "typer"):
        assert ours not in done.err


# ---- as torchrun ----


def test_a_script_runs_and_leaves_a_trace_and_a_summary(place):
    done = place.run("--nproc-per-node", "4", "--steps", "2", place.write(TRAIN))
    assert done.code == 0, done.err
    trace = Trace.load(place.trace)
    assert (trace.world_size, trace.num_steps, trace.cluster) == (4, 2, "dgx-a100")
    for word in ("per step", "FLOP", "communication", "memory", "links", "GPU-hours", "core-second", "report.html"):
        assert re.search(word, done.out, re.IGNORECASE), (word, done.out)
    names = {path.name for path in place.trace.parent.iterdir()}
    assert names == {FILE_NAME, "report.html", "summary.json", "trace.json.gz"}
    assert "Warning" not in done.err
    assert place.leftovers() == []


def test_torchruns_flags_are_accepted(place):
    place.write("import sys, os\nprint('args', sys.argv[1:], __name__)", "package/train.py")
    place.write("", "package/__init__.py")
    done = place.run(
        *("--nnodes=2:2", "--nproc_per_node=gpu", "--node_rank=0", "--standalone", "--max-restarts=3"),
        *("--rdzv-backend=c10d", "--rdzv_endpoint=host:29400", "--rdzv-id=job1", "--rdzv_conf=timeout=5"),
        *("--master_addr=10.0.0.1", "--master-port=1234", "--tee=3", "--log-dir=logs", "--role=trainer"),
        *("--monitor-interval=1", "--start-method=spawn", "-r", "3", "--local-addr=host"),
        *("--cluster", "dgx-a100", "--ranks", "0,15", "--out", "here"),
        *("-m", "package.train", "--lr", "0.1", "--steps", "7", "-m"),
    )
    assert done.code == 0, done.err
    assert "[rank 0] args ['--lr', '0.1', '--steps', '7', '-m'] __main__" in done.out
    assert Trace.load(place.directory / "here").world_size == 16
    assert Trace.load(place.directory / "here").captured_ranks == (0, 15)


def test_the_environment_is_torchruns(place, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script = place.write("import json, os\nprint(json.dumps(dict(os.environ)))")
    done = place.run("--nnodes", "2", "--nproc-per-node", "3", "--ranks", "all", script)
    ours = {}
    for line in done.out.splitlines():
        if match := re.match(r"\[rank (\d+)\] (\{.*)", line):
            ours[int(match[1])] = json.loads(match[2])
    assert sorted(ours) == [0, 1, 2, 3, 4, 5], done.err
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python", "env"]
    text = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True).stdout
    theirs = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    added = set(theirs) - set(os.environ) - {"TORCHELASTIC_ERROR_FILE", "LINES"}
    assert {"RANK", "TORCHELASTIC_RUN_ID"} <= added
    assert added - set(ours[4]) == set()
    own = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"}
    own |= {"ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}
    assert {name: ours[4][name] for name in added - own} == {name: theirs[name] for name in added - own}
    assert {name: ours[4][name] for name in sorted(own)[1:] if name[:6] not in ("MASTER", "TORCHE")} == {
        "GROUP_WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "3",
        "RANK": "4",
        "ROLE_RANK": "4",
        "ROLE_WORLD_SIZE": "6",
        "WORLD_SIZE": "6",
    }
    assert ours[4]["GROUP_RANK"] == "1"
    assert len({(rank["MASTER_ADDR"], rank["MASTER_PORT"]) for rank in ours.values()}) == 1


def test_a_script_finds_its_neighbours_its_arguments_and_its_output_its_rank(place):
    place.write("NAME = 'neighbour'", "lib/helper.py")
    script = place.write(
        "import sys, helper\nprint(helper.NAME, sys.argv, __file__)\nprint('oh', file=sys.stderr)", "lib/main.py"
    )
    done = place.run("--nproc-per-node", "1", "lib/main.py", "--flag", "x y")
    assert f"[rank 0] neighbour ['lib/main.py', '--flag', 'x y'] {os.path.relpath(script, place.directory)}" in done.out
    assert "[rank 0] oh" in done.err


def test_leaving_early_with_exit_code_zero_is_a_run_without_steps_not_a_failed_script(place):
    for leave in ("import sys\nsys.exit(0)", "raise SystemExit"):
        done = place.run("--nproc-per-node", "2", place.write(leave))
        assert done.code == 1
        assert "no-steps" in done.err
        assert "script-error" not in done.err


# ---- launch commands ----


def test_a_launch_command_behind_our_options_is_read_and_kept_as_typed(place):
    words = ("--steps", "1", "--", "torchrun", "--nproc-per-node", "2", place.write(TRAIN))
    done = place.run(*words)
    assert done.code == 0, done.err
    trace = Trace.load(place.trace)
    assert (trace.world_size, trace.num_steps) == (2, 1)
    assert trace.command == ("sandtable", "run", *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--", "bash", "train.sh"), "'bash' runs a shell script; put `sandtable run --` before"),
        (("--", "torchrun", "--nprocs", "2", "train.py"), "but got '--nprocs'"),
        (("--nnodes", "4", "--", "torchrun", "--nnodes", "2", "train.py"), "got 4 where torchrun says 2"),
        (("--", "python", "-m", "no.such.module"), "'no.such.module' is not"),
    ],
)
def test_a_command_that_cannot_be_rehearsed_is_an_error_at_once(place, words, message):
    done = place.run(*words)
    assert_clean_failure(place, done)
    assert message in " ".join(done.err.split())


# ---- scripts that fail ----


def test_a_missing_script_is_named(place):
    done = place.run("--nproc-per-node", "2", "nowhere.py")
    assert_clean_failure(place, done)
    assert "'nowhere.py' does not exist" in done.err
    missing = place.run("-m", "no.such.module")
    assert_clean_failure(place, missing)
    assert "'no.such.module' is not" in missing.err


def test_a_script_that_raises_shows_its_own_traceback(place):
    script = place.write(HEAD + "def deep():\n    raise ValueError('bad learning rate')\n\nif rank == 1:\n    deep()\n")
    done = place.run("--nproc-per-node", "2", "--ranks", "all", script)
    assert_clean_failure(place, done, rule="script-error")
    assert "rank 1" in done.err
    assert "ValueError: bad learning rate" in done.err
    lines = [line for line in done.err.splitlines() if line.strip().startswith("File ")]
    assert len(lines) == 2
    assert all("train.py" in line for line in lines)


def test_a_syntax_error_is_shown_as_python_shows_it(place):
    done = place.run("--nproc-per-node", "1", place.write("x = (\n"))
    assert_clean_failure(place, done, rule="script-error")
    assert "SyntaxError" in done.err
    assert "train.py" in done.err


@pytest.mark.parametrize("ending", ["sys.exit(1)", "sys.exit('no data')", "os._exit(7)", "os.kill(os.getpid(), 11)"])
def test_a_script_that_leaves_with_an_error_fails_the_run(place, ending):
    done = place.run("--nproc-per-node", "1", place.write(f"import os, sys\n{ending}\n"))
    assert_clean_failure(place, done, code=done.code or 1, rule="script-error")
    if "no data" in ending:
        assert "no data" in done.err


def test_a_failure_on_one_rank_ends_the_others(place):
    script = place.write(HEAD + "import time\nif rank == 1:\n    raise KeyError('x')\ntime.sleep(100)\n")
    began = time.monotonic()
    assert_clean_failure(place, place.run("--nproc-per-node", "4", "--ranks", "all", script), rule="script-error")
    assert time.monotonic() - began < 60


def test_an_old_trace_is_not_taken_for_the_failed_runs(place):
    assert place.run("--nproc-per-node", "1", place.write(TRAIN)).code == 0
    failed = place.run("--nproc-per-node", "1", place.write("1 / 0"))
    assert_clean_failure(place, failed, rule="script-error")
    assert Trace.load(place.trace).num_steps == 0


def test_out_of_memory_ends_the_run_with_the_lines_that_hold_it(place):
    script = place.write(HEAD + "held = [torch.empty(2**30, device='cuda') for _ in range(100)]\n")
    done = place.run("--nproc-per-node", "1", script)
    assert_clean_failure(place, done, rule="out-of-memory")
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB" in done.err
    assert re.search(r"76.00 GiB\s+\S*train.py:7", done.err)


# ---- bad options ----


def test_an_unknown_cluster_is_answered_with_names(place):
    done = place.run("--cluster", "dgx-a10", place.write(TRAIN))
    assert_clean_failure(place, done)
    assert "dgx-a10" in done.err
    assert "dgx-a100" in done.err


def test_a_world_that_does_not_fit_is_answered_with_the_rule(place):
    done = place.run("--nproc-per-node", "16", place.write(TRAIN))
    assert_clean_failure(place, done)
    assert "16" in done.err
    assert "8" in done.err


def test_a_malformed_cluster_file_is_answered_with_file_and_place(place):
    done = place.run("--cluster", place.write("[node\ngpus = ", "mine.toml"), place.write(TRAIN))
    assert_clean_failure(place, done)
    assert "mine.toml" in done.err
    done = place.run("--cluster", place.write("gpus = 'many'\n", "other.toml"), place.write(TRAIN))
    assert_clean_failure(place, done)
    assert "other.toml" in done.err


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--nnodes", "none", "--nnodes"),
        ("--nproc-per-node", "many", "--nproc-per-node"),
        ("--ranks", "some", "--ranks"),
        ("--ranks", "9", "9"),
        ("--steps", "0", "--steps"),
    ],
)
def test_a_bad_option_is_named(place, option, value, word):
    done = place.run(option, value, place.write(TRAIN))
    assert done.code != 0
    assert word in done.err
    assert "Traceback" not in done.err


# ---- scripts that do not end, or do not agree ----


def test_a_script_that_never_steps_is_captured_to_the_limit_and_told_so(place):
    script = place.write(HEAD + "x = torch.rand(64, device='cuda')\nwhile True:\n    x = x + 1\n")
    done = place.run("--nproc-per-node", "1", "--max-operators", "1000", script)
    assert done.code == 1, done.err
    assert "no-steps" in done.err
    assert "max-operators" in done.err
    assert Trace.load(place.trace).num_steps == 0


@pytest.mark.parametrize(
    ("make", "update", "told"),
    [
        ("optimizer = torch.optim.SGD(model.parameters())", "optimizer.step()", "no-gpu-work"),
        ("", "model.weight.data -= model.weight.grad", "3 backward passes ran, but nothing ran on the GPU"),
    ],
)
def test_a_script_that_trains_on_the_cpu_is_told_so(place, make, update, told):
    loop = f"for _ in range(3):\n    model(torch.ones(4)).sum().backward()\n    {update}\n"
    script = place.write(f"import torch\nmodel = torch.nn.Linear(4, 4)\n{make}\n{loop}")
    done = place.run("--nproc-per-node", "1", script)
    assert done.code == 1
    assert told in " ".join(done.err.split())


def test_collectives_that_do_not_match_are_shown_with_both_lines(place):
    script = place.write(
        HEAD
        + """
dist.init_process_group("nccl")
x = torch.ones(4, device="cuda")
if rank == 0:
    dist.all_reduce(x)
else:
    dist.broadcast(x, 0)
"""
    )
    done = place.run("--nproc-per-node", "2", "--ranks", "all", script)
    assert_clean_failure(place, done, rule="collective-mismatch")
    assert "train.py:11" in done.err
    assert "train.py:13" in done.err
    assert "all_reduce" in done.err
    assert "broadcast" in done.err


@pytest.mark.parametrize("size", [8, 1 << 20])
def test_sizes_that_do_not_match_are_shown(place, size):
    script = place.write(
        HEAD + f"dist.init_process_group('nccl')\ndist.all_reduce(torch.ones({size} + 4 * rank, device='cuda'))\n"
    )
    done = place.run("--nproc-per-node", "2", "--ranks", "all", script)
    assert_clean_failure(place, done, rule="collective-mismatch")
    assert f"{4 * size:,} bytes" in done.err
    assert f"{4 * size + 16:,} bytes" in done.err


def test_a_collective_that_one_rank_leaves_out_is_shown(place):
    script = place.write(HEAD + "dist.init_process_group('nccl')\nif rank == 0:\n    dist.barrier()\n")
    done = place.run("--nproc-per-node", "2", "--ranks", "all", script)
    assert_clean_failure(place, done, rule="missing-participant")
    assert "train.py:9" in done.err
    assert "barrier" in done.err


def test_a_deadlock_is_shown_with_who_waits_for_whom(place):
    script = place.write(
        HEAD
        + "dist.init_process_group('nccl')\nx = torch.ones(1, device='cuda')\n"
        + "dist.recv(x, src=1 - rank)\ndist.send(x, dst=1 - rank)\n"
    )
    done = place.run("--nproc-per-node", "2", "--ranks", "all", script)
    assert_clean_failure(place, done, rule="deadlock-cycle")
    assert "rank 0 waits" in done.err
    assert "rank 1 waits" in done.err
    assert "train.py:9" in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_leaves_nothing_behind(place, number):
    script = place.write(
        HEAD
        + """
import subprocess, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print("here", flush=True)
try:
    time.sleep(300)
except KeyboardInterrupt:
    time.sleep(300)
"""
    )
    process = place.start("--nproc-per-node", "2", "--ranks", "all", script)
    assert process.stdout is not None
    for line in process.stdout:
        if "here" in line:
            break
    process.send_signal(number)
    process.wait(20)
    if number == signal.SIGINT:
        assert process.returncode == 130
    give_up = time.monotonic() + 10
    while place.leftovers() and time.monotonic() < give_up:
        time.sleep(0.05)
    assert place.leftovers() == []
    assert not place.trace.exists()
    process.stdout.close()
    assert process.stderr is not None
    if number == signal.SIGINT:
        assert process.stderr.read().strip().endswith("sandtable: stopped")
    process.stderr.close()


# ---- without torch ----


def test_a_trace_and_the_command_line_load_without_torch():
    code = "import sys, sandtable.trace, sandtable.cli, sandtable.vgpu; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"
