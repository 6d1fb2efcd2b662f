"""Plans: what a lab can build."""

import math

import pytest

from sandtable.errors import LabError
from sandtable.lab import LabHost, LabPlan, LabSite


def test_uniform_plan_names_its_hosts_in_order() -> None:
    plan = LabPlan.uniform(3, bandwidth_bytes_per_s=1e6)
    assert [host.name for host in plan.hosts] == ["host0", "host1", "host2"]
    assert {host.bandwidth_bytes_per_s for host in plan.hosts} == {1e6}


@pytest.mark.parametrize(
    ("hosts", "sites", "message"),
    [
        ((), (), "1 to 200 hosts, but got 0"),
        ((LabHost(name="a"), LabHost(name="a")), (), "different names"),
        ((LabHost(name="a b"),), (), "letters, digits and hyphens"),
        ((LabHost(name="-a"),), (), "letters, digits and hyphens"),
        ((LabHost(name="a", bandwidth_bytes_per_s=-1.0),), (), "bandwidth of a must be 0"),
        ((LabHost(name="a", bandwidth_bytes_per_s=math.nan),), (), "bandwidth of a must be 0"),
        (
            (LabHost(name="a", site="east"),),
            (LabSite(name="west"),),
            "host a must be at a site of the plan, but 'east'",
        ),
        ((LabHost(name="a"),), (LabSite(name="west"),), "host a must be at a site of the plan, but ''"),
    ],
)
def test_impossible_plan_gets_the_rule_and_the_value(
    hosts: tuple[LabHost, ...], sites: tuple[LabSite, ...], message: str
) -> None:
    with pytest.raises(LabError, match=message):
        LabPlan(hosts=hosts, sites=sites)
