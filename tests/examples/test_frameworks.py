"""The examples that need a framework: its launcher's command gives what the direct form gives."""

from pathlib import Path

import pytest

import sandtable
from sandtable import Launcher, LaunchOptions

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("framework", "command"),
    [
        ("accelerate", "accelerate launch --num_processes 2 {script}"),
        ("deepspeed", "deepspeed --num_gpus 2 {script} --zero 1"),
    ],
)
def test_the_frameworks_command_and_the_direct_form_agree(
    framework: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(framework)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    script = str(EXAMPLES / f"gpt_{framework}.py")
    with Launcher() as launcher:
        options = LaunchOptions(ranks_per_node=2, launcher=launcher)
        launched = sandtable.rehearse_command(command.format(script=script), steps=2, options=options)
        direct = sandtable.rehearse(script, steps=2, options=options)
    assert launched.error is None
    assert launched.trace.num_steps == 2
    for rank in range(2):
        assert launched.trace.rank(rank).digest() == direct.trace.rank(rank).digest()
    assert launched.step_seconds == direct.step_seconds
