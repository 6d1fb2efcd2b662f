"""One launcher, many launches: the fork server is shared, everything else is fresh. Scripts use the fake runtime."""

import os
import signal
import threading
from pathlib import Path

import pytest
from tests.vgpu.test_launcher import Seen, _importable, fake_launcher, job, ours, wait_for, write

from sandtable.errors import LaunchError, ScriptError
from sandtable.events import Event, RankCaptured, RankPrinted, RankStarted, Started
from sandtable.vgpu import Launcher, open_launcher, use_launcher

__all__ = ["_importable", "write"]


@pytest.fixture
def launcher():
    with fake_launcher() as launcher:
        yield launcher


def texts(launcher: Launcher, script: str, **fields) -> list[str]:
    """What rank 0 printed."""
    seen = Seen()
    launcher.launch(job(script, world=1, **fields), listen=seen)
    return seen.texts


def test_launches_share_one_fork_server_and_it_ends_with_the_launcher(write):
    with fake_launcher() as launcher:
        first, second = (int(texts(launcher, write("print(os.getppid())"))[0]) for _ in range(2))
        assert first == second
    assert not Path(f"/proc/{first}").exists()
    with pytest.raises(LaunchError, match="closed"):
        launcher.launch(job(write("pass"), world=1))


def test_every_launch_sees_the_script_the_directory_and_the_environment_afresh(launcher, write, tmp_path, monkeypatch):
    body = "print(os.getcwd(), os.environ.get('GREETING'), sys.argv[1:], 'PYTHONHASHSEED' in os.environ)"
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setenv("GREETING", "hello")
    assert texts(launcher, write(body)) == [f"{Path.cwd()} hello [] False"]
    monkeypatch.delenv("GREETING")
    monkeypatch.chdir(tmp_path)
    assert texts(launcher, write(body)) == [f"{tmp_path} None [] False"]
    assert texts(launcher, write("print('another script')")) == ["another script"]


def test_a_rank_has_the_launchers_environment_and_torchruns_variables_only(launcher, write):
    script = write("print(*sorted(os.environ))")
    texts(launcher, script)
    names = set(texts(launcher, script)[0].split())
    plain = job(script, world=1)
    assert names == set(os.environ) | set(plain.environment(0, master_port=1)) | {"OMP_NUM_THREADS"}


def test_variables_that_python_reads_at_its_start_start_a_new_fork_server(launcher, write, monkeypatch, tmp_path):
    before = texts(launcher, write("print(os.getppid())"))
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "found_by_path.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{tmp_path / 'extra'}")
    assert texts(launcher, write("import found_by_path; print(os.getppid())")) != before


def test_each_launch_reports_its_own_processor_time(launcher, write):
    idle, busy = write("pass", "idle.py"), write("while time.process_time() < 1.5: pass", "busy.py")
    launcher.launch(job(idle, world=1))
    seconds = [launcher.launch(job(script, world=1)).core_seconds for script in (idle, busy, idle)]
    assert seconds[0] < 0.5
    assert 0.5 < seconds[1] < 3
    assert 0 < seconds[2] < 0.5


def test_a_failed_launch_leaves_the_launcher_usable(launcher, write):
    process = texts(launcher, write("print(os.getppid())"))
    with pytest.raises(ScriptError):
        launcher.launch(job(write("dist.init()\nif rank == 1: sys.exit(3)\ndist.gather(0, b'')"), world=4, ranks="all"))
    assert texts(launcher, write("print(os.getppid())")) == process


def test_a_fork_server_that_died_is_replaced(launcher, write):
    process = int(texts(launcher, write("print(os.getppid())"))[0])
    os.kill(process, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{process}").exists() or b" Z " in Path(f"/proc/{process}/stat").read_bytes())
    assert texts(launcher, write("print(os.getppid())")) != [str(process)]


def test_a_fork_server_that_dies_during_a_launch_is_an_error_and_the_next_launch_works(launcher, write):
    with pytest.raises(LaunchError, match="fork server must outlive its ranks"):
        launcher.launch(job(write("os.kill(os.getppid(), 9); time.sleep(60)"), world=1))
    assert texts(launcher, write("print('again')")) == ["again"]


def test_an_interrupted_launch_ends_its_ranks_and_the_launcher_is_usable(launcher, write, monkeypatch):
    marker = f"SANDTABLE_TEST_INTERRUPT_{os.getpid()}"
    monkeypatch.setenv(marker, "1")

    def interrupt(event: Event) -> None:
        if isinstance(event, RankPrinted):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        launcher.launch(job(write("print('here'); time.sleep(60)"), world=2, ranks="all"), listen=interrupt)
    assert ours(marker) == []
    assert texts(launcher, write("print('again')")) == ["again"]


def test_two_launchers_and_threads_do_not_disturb_each_other(launcher, write):
    scripts = {name: write(f"print('{name}'); time.sleep(0.2)", f"{name}.py") for name in "abcd"}
    printed: dict[str, list[str]] = {}

    def run(name: str, chosen: Launcher) -> None:
        printed[name] = texts(chosen, scripts[name])

    with fake_launcher() as other:
        threads = [
            threading.Thread(target=run, args=(name, chosen))
            for name, chosen in zip(scripts, (launcher, other, launcher, other), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert printed == {name: [name] for name in scripts}


def test_events_come_in_order_in_the_launching_thread(launcher, write):
    seen: list[Event] = []

    def listen(event: Event) -> None:
        assert threading.current_thread() is threading.main_thread()
        seen.append(event)

    assert texts(launcher, write("print('the fork server has started')"))
    launcher.launch(job(write("dist.init(); print('hello')"), world=2), listen=listen)
    assert [type(event) for event in seen] == [
        *(Started, RankStarted, RankPrinted, RankCaptured),
        *(RankStarted, RankCaptured),
    ]
    assert seen[1] == RankStarted(rank=0, is_sample=False)
    assert seen[-1] == RankCaptured(rank=1, is_sample=True)


def test_a_chosen_launcher_is_the_one_that_opens(launcher):
    with use_launcher(launcher), open_launcher() as opened:
        assert opened is launcher
    with open_launcher() as opened:
        assert opened is not launcher
