"""A calibration writes a cluster file that states what was measured."""

import json
from pathlib import Path

import pytest

from sandtable.cluster import Cluster, load
from sandtable.errors import LabError
from sandtable.lab import (
    Calibration,
    HostCosts,
    LabHost,
    LabPlan,
    LabSite,
    LinkRates,
    MeasuredDevice,
    OperatorTime,
    calibrate_to_file,
    machine_text,
)
from sandtable.lab.probes.standard import mm, sign, spec


def calibration(*, links: bool = True) -> Calibration:
    """1 TFLOP/s in float32, 4 GB/s elementwise, half of that in norms."""
    tensor, vector = spec("float32", [1000, 1000]), spec("float32", [1000])
    standard = (
        OperatorTime(signature=mm(500, "float32"), ns=2 * 500**3 / 0.5e12 * 1e9),
        OperatorTime(signature=mm(1000, "float32"), ns=2 * 1000**3 / 1e12 * 1e9),
        OperatorTime(signature=sign("aten::mul", [tensor, tensor], [tensor], ["t", "t"]), ns=3e6),
        OperatorTime(signature=sign("aten::native_layer_norm", [tensor, vector], [tensor], ["t"]), ns=4e6),
        OperatorTime(signature=sign("aten::index_select", [tensor, vector], [tensor], ["t"]), ns=2e6),
    )
    return Calibration(
        device=MeasuredDevice(
            type="cpu",
            name='A "fast" CPU',
            vendor="cpu",
            capability=(8, 0),
            num_sms=1,
            memory_bytes=2**30,
            l2_bytes=2**20,
            threads=1,
            share=0.4,
        ),
        host=HostCosts(forward_ns=80e3, backward_ns=50e3, optimizer_ns=12e3, tensor_ns=5e3, bare_ns=10e3),
        operators=(),
        standard=standard,
        skipped={},
        links=LinkRates(message_share=0.95, all_reduce_share=0.9, latency_ns=4e5, core_ns_per_byte=8.0)
        if links
        else None,
    )


def cluster_of(tmp_path: Path, plan: LabPlan | None, *, links: bool = True) -> Cluster:
    file = tmp_path / "calibrated.toml"
    file.write_text(machine_text(calibration(links=links), title="Lab", plan=plan), encoding="utf-8")
    return load(str(file))


def test_equal_hosts_become_equal_nodes_with_the_measured_device(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, LabPlan.uniform(4, bandwidth_bytes_per_s=25e6))
    assert (cluster.num_nodes, cluster.gpus_per_node) == (4, 1)
    device = cluster.device
    assert device.name == 'A "fast" CPU'
    assert device.matmul.float32 == pytest.approx(1e12)
    assert device.memory_bandwidth_bytes_per_s == pytest.approx(4e9)
    assert cluster.node.nics.bandwidth_bytes_per_s == pytest.approx(25e6)
    assert cluster.node.nics.efficiency == pytest.approx(0.95)
    assert cluster.node.nics.ring_efficiency == pytest.approx(0.9 / 0.95, abs=1e-4)
    assert cluster.node.nics.latency_ns == 400_000
    assert cluster.node.nics.origin.status == "measured"


def test_unequal_hosts_become_groups_in_their_order(tmp_path: Path) -> None:
    rates = [25e6, 25e6, 6.25e6, 25e6]
    cluster = cluster_of(tmp_path, LabPlan.of_bandwidths(rates))
    assert [cluster.kind_of(node).nics.bandwidth_bytes_per_s for node in range(4)] == pytest.approx(rates)
    assert cluster.device.name == 'A "fast" CPU'


def test_sites_keep_their_rates(tmp_path: Path) -> None:
    hosts = tuple(LabHost(name=f"h{i}", bandwidth_bytes_per_s=1e6, site=site) for i, site in enumerate("aab"))
    sites = (LabSite(name="a", bandwidth_bytes_per_s=1e5), LabSite(name="b", bandwidth_bytes_per_s=2e5))
    cluster = cluster_of(tmp_path, LabPlan(hosts=hosts, sites=sites))
    assert [site.num_nodes for site in cluster.fabric.sites] == [2, 1]
    assert [site.bandwidth_bytes_per_s for site in cluster.fabric.sites] == pytest.approx([1e5, 2e5])


def test_without_measured_links_the_adapters_are_said_to_be_nominal(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, LabPlan.uniform(2, bandwidth_bytes_per_s=25e6), links=False)
    assert cluster.node.nics.origin.status == "nominal"


def test_this_machine_alone_is_one_node(tmp_path: Path) -> None:
    assert cluster_of(tmp_path, None, links=False).num_devices == 1


def test_strings_are_escaped(tmp_path: Path) -> None:
    text = machine_text(calibration(), title='a "b" \\ c', plan=None)
    assert json.dumps('a "b" \\ c') in text


@pytest.mark.parametrize(
    ("name", "rule"), [("", "must be a file, but .* is a folder"), ("none/x.toml", "must be in an existing folder")]
)
def test_file_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path, name: str, rule: str) -> None:
    with pytest.raises(LabError, match=f"{rule}.*; choose another path with --out"):
        calibrate_to_file(tmp_path / name)
