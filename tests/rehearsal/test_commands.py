"""A launch command gives what the direct form gives: the same ranks, the same time, the environment it would set."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launch.notebooks import write_notebook
from tests.rehearsal.scripts import TRAIN

import sandtable
from sandtable import Launcher, LaunchOptions, Rehearsal
from sandtable.errors import LaunchError, ScriptError
from sandtable.events import Event, RankPrinted

Rehearse = Callable[..., Rehearsal]

PRINT = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NODEID", "ACCELERATE_MIXED_PRECISION", "CROSS_RANK", "GREETING")
print(json.dumps([{name: os.environ[name] for name in names if name in os.environ}, sys.argv[1:]]))
"""


@pytest.fixture
def command(launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rehearse:
    """Rehearse a command in the directory of `train.py`, which trains on the ranks of torchrun."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")

    def call(text: str, **settings: object) -> Rehearsal:
        options = LaunchOptions(ranks="all", launcher=launcher, **settings.pop("launch", {}))  # type: ignore[arg-type]
        return sandtable.rehearse_command(text, options=options, steps=2, **settings)  # type: ignore[arg-type]

    return call


def test_a_command_and_the_direct_form_give_the_same_run(command: Rehearse, rehearse_text: Rehearse, tmp_path: Path):
    direct = rehearse_text(TRAIN)
    script = str(tmp_path / "train.py")
    launched = command(f"torchrun --nproc-per-node 2 {script}")
    assert launched.step_seconds == direct.step_seconds
    assert [launched.trace.rank(rank).digest() for rank in (0, 1)] == [
        direct.trace.rank(rank).digest() for rank in (0, 1)
    ]
    assert launched.trace.command == ("torchrun", "--nproc-per-node", "2", script)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python print.py -x", [[{}, ["-x"]]]),
        (
            "GREETING=hello srun -N 2 --ntasks-per-node 1 python print.py",
            [[{"SLURM_PROCID": str(n), "SLURM_NODEID": str(n), "GREETING": "hello"}, []] for n in range(2)],
        ),
        (
            "deepspeed --num_gpus 2 print.py -x",
            [[{"RANK": n, "LOCAL_RANK": n, "CROSS_RANK": "0"}, [f"--local_rank={n}", "-x"]] for n in "01"],
        ),
        (
            "accelerate launch --num_processes 2 --mixed_precision bf16 -m print",
            [[{"RANK": n, "LOCAL_RANK": n, "ACCELERATE_MIXED_PRECISION": "bf16"}, []] for n in "01"],
        ),
    ],
    ids=lambda value: value.split(" -")[0] if isinstance(value, str) else "",
)
def test_each_rank_finds_what_its_launcher_sets(
    command: Rehearse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: object
):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "print.py").write_text(PRINT, encoding="utf-8")
    printed: dict[int, object] = {}

    def listen(event: Event) -> None:
        if isinstance(event, RankPrinted):
            printed[event.rank] = json.loads(event.text)

    command(text, launch={"listen": listen})
    assert [printed[rank] for rank in sorted(printed)] == expected


def test_a_command_with_visible_devices_sees_only_these(command: Rehearse, tmp_path: Path):
    (tmp_path / "count.py").write_text("import torch\nprint(torch.cuda.device_count())\n", encoding="utf-8")
    printed: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, RankPrinted) and not event.is_error:
            printed.append(event.text)

    command("CUDA_VISIBLE_DEVICES=2,3 python count.py", launch={"listen": listen})
    assert printed == ["2"]


def test_modules_of_a_path_before_the_command_are_found(command: Rehearse, tmp_path: Path):
    package = tmp_path / "lib" / "package"
    package.mkdir(parents=True)
    (package / "train.py").write_text(TRAIN, encoding="utf-8")
    assert command(f"PYTHONPATH={package.parent} torchrun --nproc-per-node 2 -m package.train").error is None
    with pytest.raises(LaunchError, match=r"'package.train' is not"):
        command("torchrun --nproc-per-node 2 -m package.train")


def test_numbers_besides_a_command_must_agree_with_it(command: Rehearse):
    with pytest.raises(LaunchError, match=r"--nnodes must agree .* got 2 where torchrun says 1; leave --nnodes out"):
        command("torchrun --nproc-per-node 2 train.py", nodes=2)
    with pytest.raises(LaunchError, match=r"--nproc-per-node must agree .* got 4 where torchrun says 2"):
        command("torchrun --nproc-per-node 2 train.py", launch={"ranks_per_node": 4})
    assert command("torchrun --nproc-per-node 2 train.py", nodes=1, launch={"ranks_per_node": 2}).error is None
    assert command("torchrun --nproc-per-node gpu train.py", launch={"ranks_per_node": 2}).trace.world_size == 2


def test_nodes_that_a_command_leaves_open_are_the_clusters(command: Rehearse, tmp_path: Path):
    (tmp_path / "empty.py").write_text("", encoding="utf-8")
    cluster = sandtable.load_cluster("dgx-a100", nodes=2)
    assert command("srun python empty.py", cluster=cluster).trace.world_size == 16
    options = {"ranks_per_node": 4}
    assert command("srun python empty.py", cluster=cluster, nodes=1, launch=options).trace.world_size == 4
    assert command("python empty.py", cluster=cluster).trace.world_size == 1


# ---- notebooks ----

CELLS = (
    "!nvidia-smi\nimport torch",
    "model = torch.nn.Linear(64, 64).cuda()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    "%%time\nfor _ in range(4):\n    model(torch.rand(8, 64, device='cuda')).sum().backward()\n    optimizer.step()",
)


def test_a_notebook_runs_as_one_process_without_a_launcher(launcher: Launcher, tmp_path: Path):
    check = "import os\nassert 'RANK' not in os.environ and __name__ == '__main__'\ndisplay(1)"
    notebook = write_notebook(tmp_path / "train.ipynb", *CELLS, check)
    run = sandtable.rehearse(notebook, steps=2, options=LaunchOptions(launcher=launcher))
    assert (run.error, run.trace.world_size, run.trace.num_steps) == (None, 1, 2)
    assert [note.text for note in run.trace.notes] == [f"only IPython runs '!nvidia-smi' ({notebook} cell 1 line 1)"]
    files = {line.file for line in run.trace.lines if line.file}
    assert files == {f"{notebook} cell {number}" for number in (2, 3)}


def test_an_error_in_a_notebook_is_found_by_cell_and_line(launcher: Launcher, tmp_path: Path):
    notebook = write_notebook(
        tmp_path / "train.ipynb", *CELLS[:2], "def fail():\n    raise ValueError('bad')\n\nfail()"
    )
    run = sandtable.rehearse(notebook, options=LaunchOptions(launcher=launcher))
    assert isinstance(run.error, ScriptError)
    assert run.findings[0].evidence[0].place == f"{notebook} cell 3 line 2"
    assert 'cell 3", line 4, in <module>\n    fail()' in run.error.traceback


def test_a_notebook_may_run_on_many_ranks(launcher: Launcher, tmp_path: Path):
    notebook = write_notebook(tmp_path / "train.ipynb", TRAIN)
    options = LaunchOptions(ranks_per_node=2, ranks="all", launcher=launcher)
    assert sandtable.rehearse(notebook, steps=2, options=options).summary.world_size == 2
