"""The examples of docs/clusters.md are what they say."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandtable.cluster import Topology, load
from sandtable.errors import ClusterError

PAGE = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")
SMALL, FULL, MIXED = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize(("text", "nodes", "gpus"), [(SMALL, 1, 2), (FULL, 16, 128), (MIXED, 6, 42)])
def test_the_files_of_the_page_load(tmp_path: Path, text: str, nodes: int, gpus: int) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    cluster = load(path)
    assert (cluster.num_nodes, cluster.num_devices) == (nodes, gpus)
    assert Topology(cluster).num_ranks == gpus


def test_the_full_file_has_every_tier(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FULL, encoding="utf-8")
    assert [tier.name for tier in Topology(load(path)).tiers] == ["gpu", "nic", "leaf", "site"]


VALUES = [
    "0",
    "-1",
    "1",
    "7",
    "3.5",
    "1e400",
    "nan",
    "-inf",
    '""',
    '"x"',
    "true",
    "[]",
    "[0]",
    "[[0]]",
    "{}",
    "1979-05-27",
]
LINES = [(text, line) for text in (FULL, MIXED) for line in text.splitlines() if "=" in line or line.startswith("[")]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choice=st.sampled_from(LINES), value=st.sampled_from([*VALUES, "", "\n"]))
def test_a_file_with_one_line_spoilt_loads_or_says_what_is_wrong(
    tmp_path: Path, choice: tuple[str, str], value: str
) -> None:
    """Another value, a table by another name or left out: an answer with the file's name, and never anything else."""
    text, line = choice
    spoilt = f"{line.partition('=')[0]} = {value}" if "=" in line and value.strip() else value
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(line, spoilt, 1), encoding="utf-8")
    answers: list[str] = []
    try:
        rates = Topology(load(path)).bandwidth_bytes_per_s
    except ClusterError as error:
        rates = np.ones(0)
        answers = str(error).splitlines()
    assert (rates > 0).all()
    assert len(rates) or answers
    assert all(each.startswith(f"{path}: ") for each in answers)


def test_the_python_of_the_page_runs() -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    topology = names["topology"]
    assert isinstance(topology, Topology)
    assert [topology.link_name(link) for link in topology.routes(0, 8)[0][:2]] == [
        "node 0 nic 0 out",
        "node 1 nic 0 in",
    ]
    assert topology.bandwidth_bytes_per_s[topology.routes(0, 8)[0][:2]].tolist() == [24e9, 24e9]
