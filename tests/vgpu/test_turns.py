"""Turns: as many ranks compute at a time as there are cores, and none waits forever."""

import json
import os
import signal
import socket
import threading
import time

import pytest
from tests.vgpu.test_launcher import ROOT, job, launch

from sandtable.vgpu.processes import cpu_ticks
from sandtable.vgpu.turns import Turn, Turns

BUSY = """
dist.init()
start = time.monotonic()
while time.process_time() < 0.2:
    pass
with open(f"{sys.path[0]}/busy{rank}", "w") as file:
    json.dump([start, time.monotonic()], file)
"""

FILE_BARRIER = """
dist.init()
open(f"{sys.path[0]}/here{rank}", "w").close()
while not all(os.path.exists(f"{sys.path[0]}/here{other}") for other in range(dist.world_size)):
    time.sleep(0.01)
dist.do(1)
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))

    def write_script(text: str) -> str:
        path = tmp_path / "script.py"
        head = "import json, os, sys, time\nfrom tests.vgpu.fake_runtime import dist\nrank = dist.rank\n"
        path.write_text(head + text)
        return str(path)

    return write_script


def test_no_more_ranks_compute_than_there_are_cores(write, tmp_path):
    launch(job(write(BUSY), world=8, ranks="all"))
    spans = [json.loads((tmp_path / f"busy{rank}").read_text()) for rank in range(8)]
    at_once = max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)
    assert at_once <= len(os.sched_getaffinity(0))


def test_ranks_that_meet_outside_of_all_collectives_are_given_turns(write):
    world = len(os.sched_getaffinity(0)) + 2
    trace = launch(job(write(FILE_BARRIER), world=world, per_node=1, ranks="all"))
    assert trace.world_size == world


def test_a_ready_answer_does_not_end_the_turn_and_a_late_one_does():
    turns = Turns()
    turn = Turn(*turns.ends)
    near, far = socket.socketpair()
    for _ in os.sched_getaffinity(0):
        turn.begin()
    far.send(b".")
    turn.wait_for(near)
    assert near.recv(1) == b"."
    others = os.fork()
    if others == 0:  # another rank gets the turn meanwhile, gives it back, and answers
        turn.begin()
        turn.end()
        far.send(b"!")
        os._exit(0)
    turn.wait_for(near)
    assert near.recv(1) == b"!"
    assert os.waitpid(others, 0)[1] == 0
    turns.close()


def test_turns_that_went_with_a_dead_rank_come_back():
    turns = Turns()
    take, _ = turns.ends
    Turn(*turns.ends).begin()
    turns.start_again()
    assert len(os.read(take, 4096)) == len(os.sched_getaffinity(0))
    turns.close()


def test_idle_cores_add_a_turn(monkeypatch):
    turns = Turns()
    take, _ = turns.ends
    num_cores = len(os.read(take, 4096))
    assert num_cores == len(os.sched_getaffinity(0))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 0.5)
    turns.look([], has_news=False)
    monkeypatch.setattr(time, "monotonic", lambda: now + 1.5)
    turns.look([], has_news=False)
    monkeypatch.undo()
    assert os.read(take, 4096) == b"."
    turns.close()


def test_a_rank_that_wants_a_core_and_does_not_get_it_is_not_idle():
    turns = Turns()
    take, _ = turns.ends
    os.read(take, 4096)
    busy = os.fork()
    if busy == 0:
        while True:
            pass
    try:
        turns._next_look = 0.0
        turns._ticks = cpu_ticks(busy)
        turns.look([busy], has_news=False)
        os.set_blocking(take, False)
        with pytest.raises(BlockingIOError):
            os.read(take, 1)
    finally:
        os.kill(busy, signal.SIGKILL)
        os.waitpid(busy, 0)
        turns.close()


def test_ranks_that_compute_in_silence_add_a_turn(monkeypatch):
    """Two that loop forever must not keep a third, which would fail, from running."""
    turns = Turns()
    take, _ = turns.ends
    os.read(take, 4096)
    now = time.monotonic()
    monkeypatch.setattr("sandtable.vgpu.turns.wants_core", lambda process: True)
    for seconds, has_news in ((1.5, True), (4.0, False), (8.0, False)):
        monkeypatch.setattr(time, "monotonic", lambda later=now + seconds: later)
        turns.look([os.getpid()], has_news=has_news)
    monkeypatch.undo()
    assert os.read(take, 4096) == b"."
    turns.close()


def test_a_rank_that_cannot_send_lets_others_compute():
    launcher, rank = socket.socketpair()
    (takes, gave), (taken, gives) = os.pipe(), os.pipe()
    message = b"x" * (4 << 20)
    sender = threading.Thread(target=Turn(takes, gives).send, args=(rank, message))
    sender.start()
    assert os.read(taken, 1) == b"."  # the turn is back, though nobody has read the message
    received = 0
    while received < len(message):
        received += len(launcher.recv(1 << 20))
    assert sender.is_alive()
    os.write(gave, b".")
    sender.join(timeout=10)
    assert not sender.is_alive()
