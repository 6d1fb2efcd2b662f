"""A job: every rank gets the device of the node it is on."""

from pathlib import Path

from tests.cluster.machines import MIXED

from sandtable.cluster import load
from sandtable.launch import FixedEnvironment
from sandtable.vgpu import Job


def test_on_unequal_nodes_each_rank_has_its_own_device(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MIXED, encoding="utf-8")
    job = Job(script=str(path), world_size=12, nproc_per_node=2, cluster=load(path))
    devices = [job.rank_settings(rank).device.id for rank in range(12)]
    assert devices == [*["a100-sxm4-80gb"] * 4, *["rtx4090"] * 6, *["titan-x-pascal"] * 2]


def test_plain_python_gives_a_rank_no_variables() -> None:
    job = Job(
        script=__file__,
        world_size=1,
        nproc_per_node=1,
        cluster=load("dgx-a100", nodes=1),
        launcher_environment=FixedEnvironment(),
    )
    assert job.environment(0, master_port=29500) == {}
