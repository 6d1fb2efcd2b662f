"""Clusters as plans of a lab."""

from dataclasses import replace
from pathlib import Path

import pytest

from sandtable.cluster import load
from sandtable.errors import LabError
from sandtable.lab import plan_for

SITES = """
title = "Two places"
device = "cpu-core"
gpus_per_node = 1
num_nodes = 3
source = "test"
status = "nominal"

[nics]
count = 1
gbit_per_s = 1.0
latency_us = 10
transport = "tcp"
source = "test"
status = "nominal"

[fabric]
source = "test"
status = "nominal"

[fabric.between_sites]
gbit_per_s = 0.08
latency_ms = 5
source = "test"
status = "nominal"

[[fabric.sites]]
name = "east"
num_nodes = 2

[[fabric.sites]]
name = "west"
num_nodes = 1
gbit_per_s = 0.04
"""


def test_the_catalogues_lab_is_four_hosts_at_200_mbit() -> None:
    plan = plan_for(load("lab"), cores=0.5)
    assert [host.name for host in plan.hosts] == ["host0", "host1", "host2", "host3"]
    assert {host.bandwidth_bytes_per_s for host in plan.hosts} == {25e6}
    assert {host.cores for host in plan.hosts} == {0.5}
    assert plan.sites == ()


def test_a_nodes_adapters_are_one_cable() -> None:
    cluster = load("dgx-a100", nodes=2)
    nics = cluster.node.nics
    rates = {host.bandwidth_bytes_per_s for host in plan_for(cluster).hosts}
    assert rates == {nics.count * nics.bandwidth_bytes_per_s}


def test_sites_keep_their_nodes_and_their_own_rates(tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text(SITES)
    plan = plan_for(load(str(file)))
    assert [host.site for host in plan.hosts] == ["east", "east", "west"]
    assert [(site.name, site.bandwidth_bytes_per_s) for site in plan.sites] == [("east", 10e6), ("west", 5e6)]


def test_more_nodes_than_one_machine_can_be_are_refused() -> None:
    with pytest.raises(LabError, match=r"1 to 200 hosts, but 'dgx-a100' has 384 nodes"):
        plan_for(load("dgx-a100", nodes=384))


def test_oversubscribed_switches_are_refused_with_the_way_to_say_it() -> None:
    cluster = load("selene", nodes=4)
    assert cluster.fabric.tiers, "the test needs a cluster with switches"
    tier = replace(cluster.fabric.tiers[0], oversubscription=4.0)
    narrow = replace(cluster, fabric=replace(cluster.fabric, tiers=(tier, *cluster.fabric.tiers[1:])))
    with pytest.raises(LabError, match=r"oversubscribed; describe the slow uplink as \[\[fabric.sites\]\]"):
        plan_for(narrow)
