"""The tests' own torchrun is the command's, and leaves nothing behind."""

import os

import pytest
from tests.torchrun import torchrun, torchrun_command

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor(dist.get_rank() + 1.0)
dist.all_reduce(value)
kinds = ("TORCHELASTIC", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "OMP_")
names = sorted(name for name in os.environ if name.startswith(kinds))
said = [os.environ["RANK"], value.item(), torch.get_num_threads(), names, sys.argv[1:], __name__]
sys.stdout.write(f"{said}\\n")  # one write: unbuffered ranks share a pipe, and print() would write piece by piece
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


@pytest.mark.slow
def test_forked_ranks_say_what_those_of_the_command_say(script):
    path = script(SCRIPT)
    forked, started = torchrun(2, path, "--flag"), torchrun_command(2, path, "--flag")
    assert (forked.returncode, started.returncode) == (0, 0), forked.stderr + started.stderr
    assert len(forked.stdout.splitlines()) == 2
    assert sorted(forked.stdout.splitlines()) == sorted(started.stdout.splitlines())


@pytest.mark.parametrize(
    "text", ["raise ValueError('told')", "import sys; sys.exit('told')", "import os; os.kill(os.getpid(), 9)"]
)
def test_a_rank_that_fails_fails_the_run(script, text):
    done = torchrun(2, script(text))
    assert done.returncode != 0
    assert "kill" in text or "told" in done.stderr


def test_a_script_may_end_itself_without_failing(script):
    assert torchrun(1, script("import sys; sys.exit(0)")).returncode == 0


def test_ranks_that_do_not_end_in_time_are_ended(script, tmp_path):
    assert torchrun(1, script("")).returncode == 0  # the server is up
    path = script(
        f"import os, time; open(r'{tmp_path}/' + os.environ['RANK'], 'w').write(str(os.getpid())); time.sleep(300)"
    )
    with pytest.raises(AssertionError, match="did not end within 8"):
        torchrun(2, path, timeout_s=8)
    for rank in range(2):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / str(rank)).read_text()), 0)
