"""The examples of docs/clusters.md are what they say."""

import re
from pathlib import Path

import pytest

from sandtable.cluster import Topology, load

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
