"""Searches rehearse real scripts, remember what they found, and leave nothing running."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from typer.testing import CliRunner

from sandtable import SearchOptions, plan
from sandtable.cli import app
from sandtable.errors import PlanError
from sandtable.planner.search import SearchStarted, TrialEnded

SCRIPT = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--layers", type=int, default=1)
parser.add_argument("--name", default="")
args = parser.parse_args()
if args.width % 3 == 0:
    raise ValueError(f"width ({args.width}) must not be a multiple of 3")
torch.distributed.init_process_group("nccl")
torch.cuda.set_device(torch.distributed.get_rank() % 8)
layers = [nn.Linear(args.width, args.width, device="cuda") for _ in range(args.layers)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(64, args.width, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WORDS = ("--width", "{width}", "--layers", "{layers}")
HUGE = 2**17


@pytest.fixture
def script(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py"


class Heard:
    """A listener that keeps what a search reports."""

    def __init__(self):
        self.ended: list[TrialEnded] = []
        self.started: list[SearchStarted] = []

    def __call__(self, event):
        if isinstance(event, TrialEnded):
            self.ended.append(event)
        elif isinstance(event, SearchStarted):
            self.started.append(event)


def test_configurations_are_ranked_rejected_with_the_reason_and_remembered(script):
    heard = Heard()
    space = {"width": [4096, 8192, 96, HUGE], "layers": [1, 2]}
    result = plan(
        script, *WORDS, space=space, where=["width * layers <= 131072"], nodes=1, search=SearchOptions(listen=heard)
    )
    assert result.best is not None
    assert result.best.values == {"width": 4096, "layers": 1}
    assert [one.values["width"] for one in result.ranked] == [4096, 4096, 8192, 8192]
    assert {one.outcome.reason for one in result.rejected} == {"ValueError: width (96) must not be a multiple of 3"}
    assert all(one.outcome.place.endswith("train.py:12") for one in result.rejected)
    assert [one.values for one in result.too_large] == [{"width": HUGE, "layers": 1}]
    assert [(str(one), why) for one, why in result.excluded] == [(f"width={HUGE} layers=2", "width * layers <= 131072")]
    assert (Path(result.report) / "report.html").exists()

    again = Heard()
    wider = {"width": [4096, 8192], "layers": [1, 2, 3]}
    second = plan(script, *WORDS, space=wider, nodes=1, search=SearchOptions(listen=again))
    assert {event.trial.name for event in again.ended if not event.is_known} == {
        "width=4096 layers=3",
        "width=8192 layers=3",
    }
    figures = {one.name: one.figures.step_seconds for one in result.ranked}
    assert all(one.figures.step_seconds == figures[one.name] for one in second.ranked if one.name in figures)

    Path(script).write_text(SCRIPT.replace("range(4)", "range(5)"))
    changed = Heard()
    plan(script, *WORDS, space={"width": [4096], "layers": [1]}, nodes=1, search=SearchOptions(listen=changed))
    assert not changed.ended[0].is_known


def test_several_jobs_find_the_same(script, tmp_path):
    space = {"width": [1024, 2048], "layers": [1, 2]}
    one = plan(script, *WORDS, space=space, search=SearchOptions(out=tmp_path / "one"))
    two = plan(script, *WORDS, space=space, search=SearchOptions(out=tmp_path / "two", jobs=2))
    assert [row.name for row in one.ranked] == [row.name for row in two.ranked]
    assert [row.figures.step_seconds for row in one.ranked] == [row.figures.step_seconds for row in two.ranked]


def test_where_nothing_fits_the_need_of_the_nearest_miss_is_found_out(script):
    result = plan(script, *WORDS, space={"width": [HUGE], "layers": [2, 1]})
    assert result.best is None
    assert [one.values["layers"] for one in result.too_large] == [1, 2]
    needed = [one.outcome.needed_bytes or 0 for one in result.too_large]
    weights = 4 * HUGE * HUGE
    assert 2 * weights < needed[0] < 4 * weights  # with gradients, and DDP's buckets
    assert needed[1] > 1.9 * needed[0]


def test_the_command_line_prints_the_ranking_the_command_and_what_to_know(script):
    knobs = ("--try", "width=512,1024,3", "--try", "name=a,b")
    words = (script, "--width", "{width}", "--name", "{name}")
    ran = CliRunner().invoke(app, ["plan", "--nproc-per-node", "2", *knobs, *words])
    assert ran.exit_code == 0, ran.output
    text = " ".join(ran.output.split())
    assert "6 configurations" in text
    assert "4 run, 2 rejected" in text
    assert "width (3) must not be a multiple of 3" in text
    assert "the value of name changes no figure" in text
    assert "step times do not compare" in text
    assert "torchrun --nnodes=1 --nproc-per-node=2 train.py --width 512 --name a" in text
    data = json.loads(Path("sandtable-plan/plan.json").read_text())
    assert data["ranked"][0]["values"] == {"width": 512, "name": "a"}
    assert data["ignored_knobs"] == ["name"]


@pytest.mark.parametrize(
    ("words", "settings", "rule"),
    [
        (["train.py"], {}, "each knob must be used in the command, but width is not"),
        (["train.py", "{width}", "{depth}"], {}, "got depth; give values with --try depth="),
        (["train.py", "{width}"], {"where": ["width > 9000"]}, "none of 1 meets 'width > 9000'"),
        (["train.py", "{width}"], {"where": ["width < dp"]}, "dp is none"),
        (["train.py", "{width}"], {"search": SearchOptions(objectives=("speed",))}, "an objective must be one of time"),
        ([], {}, "needs a script"),
    ],
)
def test_what_cannot_be_searched_is_rejected_before_anything_starts(script, words, settings, rule):
    with pytest.raises(PlanError, match=rule):
        plan(*words, space={"width": [64]}, **settings)


def test_a_search_that_was_stopped_goes_on_and_leaves_nothing_running(script, tmp_path):
    code = (
        "import sys; from sandtable.cli import main; sys.argv = ['sandtable', 'plan', '--try', "
        "'width=64,128,256,512,1024,2048', 'train.py', '--width', '{width}']; main()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if " of 6: " in line:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    heard = Heard()
    plan(
        "train.py",
        "--width",
        "{width}",
        space={"width": [64, 128, 256, 512, 1024, 2048]},
        search=SearchOptions(listen=heard),
    )
    assert any(event.is_known for event in heard.ended)
    assert len(heard.ended) == 6


def test_a_worker_that_dies_costs_nothing_but_time(script, tmp_path):
    killed: list[int] = []

    def kill_a_worker(event):
        if isinstance(event, TrialEnded) and not killed:
            (worker,) = [one for one in psutil.Process().children() if "spawn_main" in " ".join(one.cmdline())]
            os.kill(worker.pid, signal.SIGKILL)
            killed.append(worker.pid)
            time.sleep(0.2)

    result = plan(
        script, "--width", "{width}", space={"width": [64, 128, 256]}, search=SearchOptions(listen=kill_a_worker)
    )
    assert killed
    assert len(result.ranked) == 3
