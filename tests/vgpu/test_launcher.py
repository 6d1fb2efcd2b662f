"""Whole launches, of scripts that talk to the rank channel directly (see `fake_runtime.py`)."""

import atexit
import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from sandtable.cluster import load
from sandtable.errors import ClusterError, LaunchError, MismatchError, ScriptError
from sandtable.events import Event, Listener, Noticed, RankPrinted, ignore
from sandtable.trace import Trace
from sandtable.vgpu import Job, Launcher

ROOT = Path(__file__).parents[2]
HEAD = "from tests.vgpu.fake_runtime import dist\nimport os, sys, time\nrank, world = dist.rank, dist.world_size\n"
MESH = """
import numpy as np
pp, dp, tp = (int(size) for size in sys.argv[1:4])
mesh = np.arange(world).reshape(pp, dp, tp)
dist.init()
mine = {}
for axis, name in enumerate(("pp", "dp", "tp")):
    for row in np.moveaxis(mesh, axis, -1).reshape(-1, mesh.shape[axis]).tolist():
        place = dist.new_group(tuple(row), name)
        if place >= 0:
            mine[name] = place, row
stage = int(np.argwhere(mesh == rank)[0][0])
pipe, stages = mine["pp"]
"""
PIPELINE = (
    MESH
    + """
shape = b"shape 0"
if stage > 0:
    shape = dist.receive(pipe, stages[stage - 1])
assert shape == b"shape %d" % stage, shape
if stage < pp - 1:
    dist.send(pipe, stages[stage + 1], b"shape %d" % (stage + 1))
dist.do(stage)
assert dist.gather(mine["dp"][0], b"seed") == [b"seed"] * dp
dist.gather(0, b"")
for _ in range(10):
    dist.all_reduce(mine["tp"][0], 4096)
    dist.step()
"""
)


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))


@pytest.fixture
def write(tmp_path):
    def write(body: str, name: str = "train.py") -> str:
        path = tmp_path / name
        path.write_text(HEAD + textwrap.dedent(body))
        return str(path)

    return write


class Seen:
    """Keeps the events of a launch."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def lines(self) -> list[tuple[int, str, bool]]:
        return [(event.rank, event.text, event.is_error) for event in self.events if isinstance(event, RankPrinted)]

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Noticed)]

    @property
    def texts(self) -> list[str]:
        return [text for _, text, _ in self.lines]


def job(script: str, *args: object, world: int = 4, per_node: int | None = None, **fields) -> Job:
    per_node = per_node or min(8, world)
    return Job(
        script=script,
        script_args=tuple(map(str, args)),
        world_size=world,
        nproc_per_node=per_node,
        cluster=load("dgx-a100", nodes=world // per_node),
        **fields,
    )


def fake_launcher() -> Launcher:
    return Launcher(runtime="tests.vgpu.fake_entry", core_path="")


@functools.cache
def shared_launcher() -> Launcher:
    launcher = fake_launcher()
    atexit.register(launcher.close)
    return launcher


def launch(job: Job, *, listen: Listener = ignore) -> Trace:
    return shared_launcher().launch(job, listen=listen)


def ranks_of(trace: Trace) -> set[tuple[int, ...]]:
    return {found.ranks for found in trace.classes}


def digests(trace: Trace) -> list[str]:
    return [trace.rank(rank).digest() for rank in range(trace.world_size)]


def ours(marker: str) -> list[int]:
    """Processes that have the marker in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                is_ours = marker.encode() in (entry / "environ").read_bytes()
                is_dead = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
            except OSError:
                continue
            if is_ours and not is_dead:
                found.append(int(entry.name))
    return found


def test_a_script_runs_as_under_torchrun(write):
    script = write("""
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE".split()
    print(*(os.environ[name] for name in names))
    print(sys.argv[1:], __name__, os.path.dirname(os.path.abspath(__file__)) == sys.path[0])
    print(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) > 0, os.environ["TORCHELASTIC_RESTART_COUNT"])
    print(sys.stdin.read() == "", "torch" in sys.modules, file=sys.stderr)
    """)
    seen = Seen()
    launch(job(script, "--lr", 3, world=16, ranks=(9,)), listen=seen)
    assert seen.lines == [
        (9, "9 1 16 8 1 2 9 16", False),
        (9, "['--lr', '3'] __main__ True", False),
        (9, "127.0.0.1 True 0", False),
        (9, "True False", True),
    ]


def test_a_module_runs_like_python_dash_m(write, tmp_path, monkeypatch):
    write("print('module', __name__, sys.argv[1:], sys.path[0] == os.getcwd())", "trainer.py")
    monkeypatch.chdir(tmp_path)
    seen = Seen()
    launch(job("trainer", "a", world=1, is_module=True), listen=seen)
    assert seen.texts == ["module __main__ ['a'] True"]


def test_few_ranks_all_run_where_they_cost_little(write):
    script = write("""
    dist.init(); dist.gather(0, b'x')
    if rank == 10 + 3:
        raise ValueError("odd")
    while True: dist.step()
    """)
    launch(job(script, world=24, num_steps=2))
    with pytest.raises(ScriptError, match="odd"):
        launch(job(script, world=24, num_steps=2, few_ranks=24))


def test_equal_ranks_are_captured_once_and_checked_by_one_sample(write):
    script = write("dist.init(); dist.gather(0, b'x'); dist.do(7)\nwhile True: dist.step()")
    trace = launch(job(script, world=16, num_steps=2))
    assert trace.captured_ranks == (0, 15)
    assert ranks_of(trace) == {tuple(range(16))}
    assert trace.num_steps == 2
    assert [group.name for group in trace.groups] == ["world"]
    assert 0 < trace.core_seconds < 60
    assert trace.peak_rss_bytes > 1 << 20


def test_pipelines_of_a_mesh_are_captured_stage_by_stage(write):
    trace = launch(job(write(PIPELINE), 4, 2, 2, world=16))
    assert ranks_of(trace) == {tuple(range(first, first + 4)) for first in range(0, 16, 4)}
    assert trace.captured_ranks == (0, 3, 4, 7, 8, 11, 12, 15)


def test_auto_and_all_give_the_same_trace(write):
    script = write(PIPELINE + "\n")
    auto, full = (launch(job(script, 2, 2, 4, world=16, ranks=ranks)) for ranks in ("auto", "all"))
    assert digests(auto) == digests(full)
    assert ranks_of(auto) == ranks_of(full)
    assert full.captured_ranks == tuple(range(16))
    assert [group.ranks for group in auto.groups] == [group.ranks for group in full.groups]


def test_the_logging_rank_becomes_a_class_of_its_own(write):
    script = write("dist.init()\nfor _ in range(9):\n    if rank == 0: dist.do(99)\n    dist.step()")
    trace = launch(job(script, world=32))
    assert ranks_of(trace) == {(0,), tuple(range(1, 32))}
    assert len(trace.captured_ranks) <= 9


def test_of_many_samples_only_the_first_are_followed_after_the_captured_steps(write, tmp_path):
    script = write("""
    dist.init()
    dist.do(rank)
    if dist.settings.follow_seconds:
        open(os.path.join(sys.argv[1], str(rank)), "w").close()
    while True: dist.step()
    """)
    for name, options in {"time": {}, "epochs": {"num_epochs": 1}}.items():
        (tmp_path / name).mkdir()
        launch(job(script, tmp_path / name, world=128, num_steps=2, follow_seconds=2.0, **options))
    followed = {name: len(list((tmp_path / name).iterdir())) for name in ("time", "epochs")}
    assert followed["time"] == 9  # the primary and eight samples
    assert followed["epochs"] > 9


def test_ranks_named_one_by_one_are_run_alone(write):
    trace = launch(job(write("dist.init(); dist.gather(0, b'x')"), world=8, ranks=(1, 5)))
    assert trace.captured_ranks == (1, 5)
    assert ranks_of(trace) == {(1, 5)}


def test_a_rank_told_too_early_runs_again_when_it_matters(write):
    # Rank 0 gathers before its pipeline neighbour is known: only the second time it hears what rank 1 really says.
    script = write("""
    dist.init()
    sizes = [int(size) for size in dist.gather(0, b"%d" % (rank + 1))]
    pipe = dist.new_group((0, 1), "pp")
    dist.do(sum(sizes))
    dist.send(pipe, 1 - rank, b"hello")
    dist.receive(pipe, 1 - rank)
    """)
    auto, full = (launch(job(script, world=2, ranks=ranks)) for ranks in ("auto", "all"))
    assert digests(auto) == digests(full)


def test_a_failure_due_to_early_answers_leads_to_a_fresh_start(write):
    script = write("""
    dist.init()
    pipe = dist.new_group((0, 1), "pp")
    total = sum(int(size) for size in dist.gather(0, b"%d" % (rank + 1)))
    dist.send(pipe, 1 - rank, b"hello")
    dist.receive(pipe, 1 - rank)
    assert total == 3, total
    """)
    seen = Seen()
    trace = launch(job(script, world=2), listen=seen)
    assert trace.captured_ranks == (0, 1)
    assert "starting again with ranks 0, 1" in seen.notices[0]


def test_a_sample_that_gathers_more_than_was_known_before_leads_to_a_fresh_start(write):
    # As with the objects of `all_gather_object`: the sizes first, then a call that depends on the longest.
    script = write("""
    dist.init()
    size = 2 if rank == world - 1 else 1
    longest = max(int(size) for size in dist.gather(0, b"%d" % size))
    dist.gather(0, b"", op="all_gather" if longest == 1 else "gather")
    """)
    seen = Seen()
    trace = launch(job(script, world=16), listen=seen)
    assert "starting again with ranks 0, 15" in seen.notices[0]
    assert trace.captured_ranks[-1] == 15


def test_threads_of_a_rank_wait_independently(write):
    script = write("""
    import threading
    dist.init()
    one, two = dist.new_group((0, 1), "one"), dist.new_group((0, 1), "two")
    found = {}
    def wait(group):
        found[group] = dist.gather(group, b"%d" % group)
    if rank == 0:
        thread = threading.Thread(target=wait, args=(one,))
        thread.start()
        time.sleep(0.2)
        wait(two)
        thread.join()
    else:
        wait(two)
        wait(one)
    assert found == {one: [b"%d" % one] * 2, two: [b"%d" % two] * 2}, found
    """)
    launch(job(script, world=2, ranks="all"))


def test_a_script_that_raises_is_reported_with_its_own_traceback(write):
    script = write("dist.init()\ndef forward():\n    raise ValueError('bad shape')\nif rank == 1: forward()")
    with pytest.raises(ScriptError) as error:
        launch(job(script, world=2, ranks="all"))
    assert (error.value.rank, error.value.exit_code) == (1, 1)
    text = error.value.traceback
    assert text.startswith("Traceback (most recent call last):\n  File ")
    assert text.endswith("ValueError: bad shape\n")
    assert "train.py" in text
    assert "forward" in text
    assert "runpy" not in text
    assert "vgpu" not in text


def test_a_syntax_error_is_shown_without_our_frames(write):
    with pytest.raises(ScriptError) as error:
        launch(job(write("def ("), world=1))
    assert "SyntaxError" in str(error.value)
    assert "runpy" not in str(error.value)


@pytest.mark.parametrize(("leave", "code"), [("sys.exit(1)", 1), ("sys.exit(7)", 7), ("sys.exit('no data')", 1)])
def test_leaving_with_a_failure_is_an_error(write, leave, code):
    with pytest.raises(ScriptError) as error:
        launch(job(write(leave), world=1))
    assert error.value.exit_code == code
    assert "SystemExit" in error.value.traceback


@pytest.mark.parametrize("leave", ["sys.exit()", "sys.exit(0)", "raise SystemExit(0)", "pass"])
def test_leaving_early_in_peace_ends_the_capture(write, leave):
    trace = launch(job(write(f"dist.do(1)\n{leave}"), world=1))
    assert trace.classes[0].records.stop_reason == "script ended"
    assert "0 of 3 steps" in trace.notes[0].text


@pytest.mark.parametrize(
    ("death", "words", "remedy"),
    [("os._exit(3)", r"os\._exit\(3\)", ""), ("os.kill(os.getpid(), 9)", "SIGKILL", "runs out of memory")],
)
def test_a_process_that_vanishes_is_an_error(write, death, words, remedy):
    with pytest.raises(ScriptError, match=words) as error:
        launch(job(write(f"print('last words', file=sys.stderr)\n{death}"), world=1))
    assert remedy in error.value.findings[0].remedy


def test_mismatched_collectives_are_reported_with_both_lines(write):
    script = write("""
    dist.init()
    if rank == 0:
        dist.gather(0, b"x", op="broadcast")
    else:
        dist.gather(0, b"x", op="all_gather")
    """)
    with pytest.raises(MismatchError) as error:
        launch(job(script, world=2, ranks="all"))
    assert "rank 0 calls broadcast at train.py:7" in str(error.value)
    assert "rank 1 calls all_gather at train.py:9" in str(error.value)


def test_mismatched_large_collectives_are_found_though_nothing_waits(write):
    script = write("""
    dist.init()
    if rank == 0:
        dist.all_reduce(0, 1 << 20)
    else:
        dist.all_reduce(0, 1 << 20, op="reduce_scatter")
    """)
    with pytest.raises(MismatchError) as error:
        launch(job(script, world=8))
    assert "rank 0 calls all_reduce of 1,048,576 bytes uint8 at train.py:7" in str(error.value)
    assert "rank 7 calls reduce_scatter of 1,048,576 bytes uint8 at train.py:9" in str(error.value)


def test_a_deadlock_is_reported_and_does_not_hang(write):
    script = write("""
    dist.init()
    pairs = [dist.new_group((0, 1), "first"), dist.new_group((0, 1), "second")]
    dist.gather(pairs[rank], b"")
    """)
    started = time.monotonic()
    with pytest.raises(MismatchError) as error:
        launch(job(script, world=2, ranks="all"))
    assert time.monotonic() - started < 20
    assert "rank 0 waits for rank 1 in all_gather, call 0 of group 'first' (2 ranks) at train.py:7" in str(error.value)


def test_waiting_for_a_rank_that_ended_is_reported(write):
    script = write("dist.init()\nif rank == 0: dist.gather(0, b'')")
    with pytest.raises(MismatchError, match="waits for rank 1, which has ended, in all_gather"):
        launch(job(script, world=2, ranks="all"))


def test_output_of_samples_is_shown_only_if_they_fail(write):
    seen = Seen()
    launch(job(write("dist.init(); print('hello', rank)"), world=4), listen=seen)
    assert seen.texts == ["hello 0"]
    with pytest.raises(ScriptError) as error:
        launch(job(write("dist.init(); print('hello', rank)\nassert rank < 3"), world=4), listen=seen)
    assert error.value.rank == 3
    assert seen.texts == ["hello 0", "hello 0", "hello 3"]


def test_lines_are_whole_and_progress_bars_are_one_line(write):
    seen = Seen()
    launch(job(write("sys.stdout.write('a\\rb\\rc\\nno newline')"), world=1), listen=seen)
    assert seen.texts == ["c", "no newline"]


def test_a_runtime_that_does_not_load_is_reported(write):
    launcher = Launcher(runtime="tests.vgpu.fake_entry", core_path="broken")
    with pytest.raises(LaunchError, match="no such core"), launcher:
        launcher.launch(job(write("pass"), world=1))


def test_impossible_jobs_are_refused(write, tmp_path):
    script = write("pass")
    with pytest.raises(LaunchError, match="does not exist"):
        job(str(tmp_path / "missing.py"))
    with pytest.raises(LaunchError, match="ranks must be between 0 and 3, but got 4"):
        job(script, ranks=(0, 4))
    with pytest.raises(LaunchError, match="must divide"):
        job(script, world=12, per_node=8)
    with pytest.raises(ClusterError):
        Job(script=script, world_size=16, nproc_per_node=8, cluster=load("dgx-a100", nodes=1))


def test_workers_of_a_rank_end_with_it_and_may_not_use_its_channel(write, monkeypatch):
    marker = f"SANDTABLE_TEST_WORKERS_{os.getpid()}"
    monkeypatch.setenv(marker, "1")
    script = write("""
    dist.init()
    if os.fork() == 0:
        try:
            dist.gather(0, b"")
        except RuntimeError as error:
            print(error, flush=True)
        time.sleep(60)
    time.sleep(0.3)
    """)
    seen = Seen()
    launch(job(script, world=1), listen=seen)
    assert "must be called by the rank's own process" in seen.texts[0]
    assert ours(marker) == []


DRIVER = """
import sys
from tests.vgpu.test_launcher import fake_launcher, job
try:
    fake_launcher().launch(job(sys.argv[1], world=4, ranks="all"))
except KeyboardInterrupt:
    print("interrupted")
    raise SystemExit(130)
"""
SLEEPERS = """
dist.init()
if os.fork() == 0:
    time.sleep(60)
open(f"{sys.path[0]}/up{rank}", "w").close()
if rank % 2: dist.gather(0, b"")
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_behind_when_the_launcher_is_ended(write, tmp_path, number):
    marker = f"SANDTABLE_TEST_END_{os.getpid()}_{number}"
    script = write(SLEEPERS)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, script],
        env=os.environ | {marker: "1", "TMPDIR": str(tmp_path)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: all((tmp_path / f"up{rank}").exists() for rank in range(4)))
    assert len(ours(marker)) >= 1 + 1 + 4 + 4
    driver.send_signal(number)
    output, _ = driver.communicate(timeout=10)
    if number == signal.SIGINT:
        assert (driver.returncode, output) == (130, "interrupted\n")
        assert ours(marker) == []
    wait_for(lambda: ours(marker) == [])
    assert list(tmp_path.glob("sandtable-*")) == []


def wait_for(condition, *, seconds: float = 20.0) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it never happened"
        time.sleep(0.02)
