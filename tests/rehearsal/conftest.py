"""A launcher that all tests of a process share, and scripts in a directory of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandtable import Launcher, LaunchOptions, Rehearsal, rehearse

Rehearse = Callable[..., Rehearsal]


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


@pytest.fixture
def rehearse_text(launcher: Launcher, tmp_path: Path) -> Rehearse:
    """Rehearse a script given as text on two GPUs of one node; options as `rehearse` takes them."""

    def call(text: str, *script_args: str, options: LaunchOptions | None = None, **settings: object) -> Rehearsal:
        script = tmp_path / "train.py"
        script.write_text(text)
        chosen = options or LaunchOptions(ranks_per_node=2, ranks="all", launcher=launcher)
        given: dict[str, object] = {"cluster": "dgx-a100", "nodes": 1, "steps": 2} | settings
        return rehearse(script, *script_args, options=chosen, **given)  # type: ignore[arg-type]

    return call
