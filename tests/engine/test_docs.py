"""The Python of docs/trace.md, engine.md, network.md and costs.md runs as it stands."""

import re
from pathlib import Path

import pytest
from tests.engine.building import Script, make_trace

from sandtable.trace import Group, Phase

DOCS = Path(__file__).parents[2] / "docs"
NUM_RANKS = 1240


@pytest.fixture
def captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter a directory with the trace of a run on 155 nodes in `sandtable-out`."""
    script = Script()
    for _ in range(2):
        script.op(0)
        script.op(0, phase=Phase.BACKWARD)
        script.wait(script.collective(1 << 24, stream=1))
        script.step()
    ranks = tuple(range(NUM_RANKS))
    trace = make_trace({0: script}, classes={0: list(ranks)}, groups=(Group("mesh_dp", ranks),))
    (tmp_path / "sandtable-out").mkdir()
    trace.save(tmp_path / "sandtable-out")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("page", ["trace.md", "engine.md", "network.md", "costs.md"])
def test_the_python_of_the_page_runs(page: str) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(code, {})
