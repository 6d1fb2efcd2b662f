"""Reduction in the switch."""

import pytest
from tests.engine.network.building import GIB, MIB, plan, topology

from sandtable.errors import ClusterError


def bus_gb_per_s(size: int, algorithm: str | None = None) -> float:
    transfer = plan("all_reduce", 16 * GIB, [range(size)], topology("dgx-h200"), algorithm=algorithm)
    return 2 * (size - 1) / size * 16 * GIB / transfer.total_ns


def test_bus_bandwidth_grows_with_the_number_of_gpus_as_measured():
    # 16 GiB on H200: measured 414, 436, 460, 473 GB/s
    measured = {5: 414.2, 6: 435.6, 7: 460.0, 8: 473.1}
    for size, rate in measured.items():
        assert bus_gb_per_s(size) == pytest.approx(rate, rel=0.02)


def test_with_four_gpus_the_switch_gains_nothing():
    assert bus_gb_per_s(4) == pytest.approx(bus_gb_per_s(4, "ring"), rel=0.02)


def test_a_machine_without_such_a_switch_says_what_it_can_do():
    with pytest.raises(ClusterError, match="must be one of ring on these machines, but got 'nvls'"):
        plan("all_reduce", MIB, [range(8)], topology("dgx-a100"), algorithm="nvls")


def test_small_messages_go_round_the_ring():
    assert plan("all_reduce", MIB, [range(8)], topology("dgx-h100")).algorithm == "ring"


def test_between_nodes_the_adapters_decide():
    wires = topology("dgx-h100", nodes=4)
    transfer = plan("all_reduce", 16 * GIB, [range(32)], wires)
    assert 2 * 31 / 32 * 16 * GIB / transfer.total_ns == pytest.approx(380, rel=0.02)
