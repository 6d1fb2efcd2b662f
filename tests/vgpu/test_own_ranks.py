"""Scripts that start their ranks themselves, each written the way its users write it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.vgpu.own_ranks import capture, line_of, write_script
from tests.vgpu.virtual import on_shared_launcher

from sandtable.cluster import load as load_cluster
from sandtable.errors import LaunchError, MismatchError, ScriptError
from sandtable.vgpu import Job
from sandtable.vgpu.subprocesses import training_command

ROOT = Path(__file__).parents[2]

TUTORIAL = """
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("nccl", rank=rank, world_size=world_size)


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5))

    def forward(self, x):
        return self.layers(x)


def one_step(model, rank):
    optimizer = optim.SGD(model.parameters(), lr=0.001)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(torch.randn(20, 10)), torch.randn(20, 5).to(rank))
    loss.backward()
    optimizer.step()


def demo_basic(rank, world_size):
    print(f"basic on rank {rank}")
    setup(rank, world_size)
    one_step(DistributedDataParallel(ToyModel().to(rank), device_ids=[rank]), rank)
    dist.destroy_process_group()


def demo_checkpoint(rank, world_size, path):
    setup(rank, world_size)
    model = DistributedDataParallel(ToyModel().to(rank), device_ids=[rank])
    if rank == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
    map_location = {"cuda:0": f"cuda:{rank}"}
    model.load_state_dict(torch.load(path, map_location=map_location, weights_only=True))
    one_step(model, rank)
    dist.barrier()
    if rank == 0:
        os.remove(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = min(torch.cuda.device_count(), 3)
    print(f"the parent sees {torch.cuda.device_count()} GPUs")
    mp.spawn(demo_basic, args=(world_size,), nprocs=world_size, join=True)
    path = os.path.join(tempfile.gettempdir(), f"model-{os.getpid()}.checkpoint")
    mp.spawn(demo_checkpoint, args=(world_size, path), nprocs=world_size, join=True)
    print("the parent ends")
"""


def test_ddp_tutorial_runs_all_its_demos(tmp_path):
    captured = capture(write_script(tmp_path, TUTORIAL, head=""), steps=2)
    assert captured.trace.world_size == 3
    assert captured.trace.num_steps == 1
    (note,) = (note.text for note in captured.trace.notes if note.kind == "several launches")
    assert note == "the script launches processes 2 times; this is launch 1"
    assert captured.lines.count((0, "the parent sees 8 GPUs")) == 1
    assert (0, "basic on rank 0") in captured.lines
    assert captured.lines[-1] == (0, "the parent ends")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loop_of_processes(tmp_path, method):
    script = write_script(
        tmp_path,
        """
        def serve(queue):
            queue.put("served")

        if __name__ == "__main__":
            mp.set_start_method(sys.argv[1])
            queue = mp.Queue()
            server = mp.Process(target=serve, args=(queue,))
            server.start()
            print(queue.get())
            processes = [mp.Process(target=train, args=(rank, 3)) for rank in range(3)]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
        """,
    )
    captured = capture(script, method)
    assert captured.trace.world_size == 3
    assert [ranks.size for ranks in captured.trace.classes] == [3]
    assert (0, "served") in captured.lines


def test_forked_processes_inherit_closures_and_answer_the_parent(tmp_path):
    script = write_script(
        tmp_path,
        """
        def main():
            world_size = 2
            queue = mp.get_context("fork").SimpleQueue()

            def work(index):
                train(index, world_size, steps=1)
                queue.put(index)

            mp.start_processes(work, nprocs=world_size, start_method="fork")
            print(sorted(queue.get() for _ in range(world_size)))

        main()
        """,
    )
    captured = capture(script, ranks="all")
    assert captured.trace.world_size == 2
    assert captured.lines[-1] == (0, "[0, 1]")


def test_parent_that_is_rank_0_itself(tmp_path):
    script = write_script(
        tmp_path,
        """
        if __name__ == "__main__":
            context = mp.get_context("spawn")
            others = [context.Process(target=train, args=(rank, 3)) for rank in (1, 2)]
            for process in others:
                process.start()
            train(0, 3)
        """,
    )
    assert capture(script).trace.world_size == 3


def test_single_process_with_data_workers_is_one_rank(tmp_path):
    script = write_script(
        tmp_path,
        """
        if __name__ == "__main__":
            loader = torch.utils.data.DataLoader(torch.randn(64, 16), batch_size=4, num_workers=2)
            model = nn.Linear(16, 16).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in loader:
                model(batch.cuda()).sum().backward()
                optimizer.step()
        """,
    )
    trace = capture(script).trace
    assert (trace.world_size, trace.num_steps) == (1, 2)


def test_spawned_ranks_may_have_data_workers(tmp_path):
    script = write_script(
        tmp_path,
        """
        def work(rank):
            batches = torch.utils.data.DataLoader(torch.randn(64, 16), batch_size=4, num_workers=1)
            assert len(list(batches)) == 16
            train(rank, 2)

        if __name__ == "__main__":
            mp.spawn(work, nprocs=2)
        """,
    )
    assert capture(script).trace.world_size == 2


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_begin_afresh_have_the_packages_that_stand_in_for_missing_ones(tmp_path, method):
    script = write_script(
        tmp_path,
        f"""
        import flash_attn

        if __name__ == "__main__":
            context = mp.get_context("{method}")
            with context.Manager() as manager:
                assert list(manager.list([1, 2])) == [1, 2]
            loader = torch.utils.data.DataLoader(
                torch.randn(64, 16), batch_size=4, num_workers=1, multiprocessing_context=context
            )
            model = nn.Linear(16, 16).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in loader:
                model(batch.cuda()).sum().backward()
                optimizer.step()
        """,
    )
    assert capture(script).trace.num_steps == 2


NODES = """
def work(local_rank, node, num_nodes, num_gpus):
    train(node * num_gpus + local_rank, num_nodes * num_gpus)

if __name__ == "__main__":
    mp.spawn(work, args=(int(os.environ.get(sys.argv[1], 0)), int(sys.argv[2]), 4), nprocs=4)
"""


def test_script_on_several_nodes_takes_its_number_from_the_environment(tmp_path):
    trace = capture(write_script(tmp_path, NODES), "NODE_RANK", "16", nodes=16).trace
    assert (trace.world_size, trace.ranks_per_node) == (64, 4)
    assert [ranks.size for ranks in trace.classes] == [64]


def test_wrong_numbers_are_rejected_by_line(tmp_path):
    script = write_script(tmp_path, NODES)
    for nodes in (1, 2):  # the world is larger than what runs; two nodes with the same ranks
        error = capture(script, "NO_SUCH_VARIABLE", "2", nodes=nodes).error
        assert "init_process_group must agree with how the processes were started" in error.traceback
        assert error.findings[0].evidence[0].place == f"{script}:{line_of(script, 'dist.init_process_group')}"


def test_processes_that_never_start_are_missed(tmp_path, monkeypatch):
    monkeypatch.setattr("sandtable.vgpu.spawned_ranks._MISSING_SECONDS", 0.5)
    script = write_script(
        tmp_path,
        """
        if __name__ == "__main__":
            processes = [mp.Process(target=train, args=(rank, 4)) for rank in range(2)]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
        """,
    )
    error = capture(script).result.error
    assert isinstance(error, MismatchError)
    (finding,) = error.findings
    assert finding.rule == "missing-rank"
    assert "started 2 of the 4 on node 0" in finding.message
    assert [evidence.place for evidence in finding.evidence] == [f"{script}:{line_of(script, 'process.start()')}"]


def test_failure_in_a_rank_names_its_line(tmp_path):
    script = write_script(
        tmp_path,
        """
        def work(rank):
            train(rank, 2, steps=1)
            assert rank == 0, "only rank 0 gets here"

        if __name__ == "__main__":
            mp.spawn(work, nprocs=2)
        """,
    )
    error = capture(script, ranks="all").error
    assert error.rank == 1
    assert error.findings[0].evidence[0].place == f"{script}:{line_of(script, 'assert rank')}"
    assert "only rank 0 gets here" in error.traceback


def test_spawned_process_begins_afresh(tmp_path):
    """As in reality, where a process imports the script again: what only the main block has set is missing."""
    script = write_script(
        tmp_path,
        """
        def work(rank):
            train(setting + rank, 2)

        if __name__ == "__main__":
            setting = 0
            mp.spawn(work, nprocs=2)
        """,
    )
    assert "name 'setting' is not defined" in capture(script).error.traceback


def test_script_that_starts_itself_as_the_other_ranks(tmp_path):
    """What Lightning and Fabric do: the script is rank 0, and starts itself once per further GPU."""
    script = write_script(
        tmp_path,
        """
        import subprocess

        print("begins")
        os.environ["WORLD_SIZE"] = "16"
        if "LOCAL_RANK" not in os.environ:
            os.environ["LOCAL_RANK"] = "0"
            for local_rank in range(1, 4):
                subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": str(local_rank)})
        train(int(os.environ.get("NODE_RANK", 0)) * 4 + int(os.environ["LOCAL_RANK"]), 16)
        """,
    )
    captured = capture(script)
    assert (captured.trace.world_size, captured.trace.ranks_per_node) == (16, 4)
    assert captured.lines.count((0, "begins")) == 1
    with pytest.raises(LaunchError, match="give --nnodes 4"):
        capture(script, nodes=2)


@pytest.mark.parametrize(
    ("body", "line", "text"),
    [
        (
            """
            import subprocess
            try:
                subprocess.run(["python", __file__])
            except Exception:
                pass
            """,
            "subprocess.run",
            "starts 'python ",
        ),
        (
            """
            def work():
                torch.zeros(1, device="cuda")

            if __name__ == "__main__":
                torch.zeros(1, device="cuda")
                process = mp.get_context("spawn").Process(target=work)
                process.start()
                process.join()
            """,
            "process.start()",
            "starts a process that used the GPU, but joined no process group",
        ),
        (
            """
            class OnGpu(torch.utils.data.Dataset):
                def __len__(self):
                    return 4

                def __getitem__(self, index):
                    return torch.zeros(1, device="cuda")

            for _ in torch.utils.data.DataLoader(OnGpu(), num_workers=1):
                pass
            """,
            "for _ in torch.utils",
            "starts a process that uses the GPU and is no rank",
        ),
        (
            """
            if __name__ == "__main__":
                queue = mp.get_context("spawn").SimpleQueue()
                queue.put(torch.zeros(1, device="cuda"))
            """,
            "queue.put",
            "sends a tensor on the GPU to another process",
        ),
    ],
)
def test_process_that_cannot_be_virtual_is_rejected_by_line(tmp_path, body, line, text):
    script = write_script(tmp_path, body)
    (finding,) = capture(script).error.findings
    assert finding.rule == "process-rejected"
    assert finding.evidence[0].text.startswith(text)
    assert finding.evidence[0].place == f"{script}:{line_of(script, line)}"
    assert finding.remedy


def test_a_spawned_worker_may_ask_what_card_there_is_while_it_imports_the_script(tmp_path):
    # Megatron-LM's checkpoints pass through a queue of a spawned manager, and its modules ask when they are imported.
    script = write_script(
        tmp_path,
        """
        torch.cuda.get_device_name()
        if __name__ == "__main__":
            queue = mp.get_context("spawn").Manager().Queue()
            queue.put(torch.zeros(1, device="cuda").device.type)
            assert queue.get() == "cuda"
        """,
    )
    assert capture(script).result.error is None


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun train.py", "torchrun train.py"),
        ("mpirun -np 4 /usr/bin/accelerate launch train.py", "accelerate launch train.py"),
        ("python -m torch.distributed.run train.py", "python -m torch.distributed.run train.py"),
        ("python3.11 -u TRAIN --lr 1", "python3.11 -u TRAIN --lr 1"),
        ("python HARMLESS", None),
        ("python -c 'import torch'", None),
        ("python -m pip freeze", None),
        ("accelerate env", None),
        ("git log", None),
        ("nvidia-smi", None),
    ],
)
def test_commands_that_train_are_known(tmp_path, command, expected):
    (tmp_path / "train.py").write_text("import torch\ntorch.zeros(1, device='cuda')\n")
    (tmp_path / "prepare.py").write_text("import json\n")
    paths = {"TRAIN": str(tmp_path / "train.py"), "HARMLESS": str(tmp_path / "prepare.py")}
    words = [paths.get(word, word.strip("'")) for word in command.split()]
    named = None if expected is None else " ".join(paths.get(word, word) for word in expected.split())
    expected_words = None if named is None else named.split()
    assert training_command(words) == expected_words
    assert training_command(["/bin/sh", "-c", " ".join(words)]) == expected_words


LAUNCHING = """
import os, subprocess, sys

if "RANK" in os.environ:
    assert os.environ["FROM_PARENT"] == "yes"
    train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    sys.exit()
print("begins")
os.environ["FROM_PARENT"] = "yes"
"""


@pytest.mark.parametrize(
    "launch",
    [
        'subprocess.run(["torchrun", "--nnodes", "2", "--nproc-per-node", "4", __file__])',
        'subprocess.run(f"torchrun --nnodes 2 --nproc-per-node 4 {__file__}", shell=True)',
        'os.execvp("torchrun", ["torchrun", "--nnodes", "2", "--nproc-per-node", "4", __file__])',
        'from torch.distributed import run; run.main(["--nnodes", "2", "--nproc-per-node", "4", __file__])',
    ],
    ids=["subprocess", "shell", "exec", "elastic"],
)
def test_command_that_the_script_starts_is_rehearsed(tmp_path, launch):
    captured = capture(write_script(tmp_path, LAUNCHING + launch))
    assert (captured.trace.world_size, captured.trace.ranks_per_node) == (8, 4)
    assert captured.lines.count((0, "begins")) == 1
    assert any("this command is rehearsed" in notice for notice in captured.notices)


def test_rank_that_starts_a_launcher_is_rejected(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import subprocess\nsubprocess.run(['torchrun', '--nproc-per-node', '2', 'train.py'])\n")
    with on_shared_launcher() as launcher:
        job = Job(script=str(script), world_size=2, nproc_per_node=2, cluster=load_cluster("dgx-a100", nodes=1))
        error = launcher.capture(job).error
    assert isinstance(error, ScriptError)
    assert error.findings[0].rule == "nested-launcher"
    assert error.findings[0].evidence[0].text.startswith("starts 'torchrun --nproc-per-node 2 train.py'")


def test_interrupt_leaves_nothing_running(tmp_path):
    script = write_script(
        tmp_path,
        """
        import time

        def work(rank):
            dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=2)
            open(f"up{rank}", "w").close()
            time.sleep(60)

        if __name__ == "__main__":
            mp.spawn(work, nprocs=2)
        """,
    )
    marker = f"SANDTABLE_TEST_OWN_{os.getpid()}"
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "sandtable", "run", "--ranks", "all", "--", "python", str(script)]
    environment = os.environ | {marker: "1", "PYTHONPATH": paths}
    run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    give_up = time.monotonic() + 60
    while not all((tmp_path / f"up{rank}").exists() for rank in range(2)):
        assert time.monotonic() < give_up, run.poll()
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=20)
    assert _processes_with(marker) == []


def _processes_with(marker: str) -> list[int]:
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path("/proc", process, "environ").read_bytes()
        except OSError:
            continue
        if f"{marker}=".encode() in environment:
            found.append(int(process))
    return found
