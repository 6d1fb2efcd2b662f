"""Work that the host does itself."""

from sandtable.cluster import load, load_device
from sandtable.engine.compute import CostModel
from sandtable.engine.compute.host_work import HostRates
from sandtable.trace import Phase, Signature, Work

RATES = HostRates(memory_bytes_per_s=32e9, disk_read_bytes_per_s=4e9, disk_write_bytes_per_s=2e9)
MODEL = CostModel(load_device("v100-sxm3-32gb"), host_rates=RATES)


def host_seconds(work: Work) -> float:
    signature = Signature("deepspeed::cpu_adam", (), (), work=work)
    assert MODEL.cost(signature).work_ns == 0, "the card does nothing"
    return MODEL.host_ns(signature, Phase.OPTIMIZER) / 1e9


def test_an_update_takes_its_bytes_at_the_hosts_rate():
    """A billion parameters on two Xeon 8168: 0.22 s (ZeRO-Offload, table 4) to a quarter of that per billion at 10."""
    node = CostModel(
        load_device("v100-sxm3-32gb"),
        host_rates=HostRates(memory_bytes_per_s=256e9, disk_read_bytes_per_s=1, disk_write_bytes_per_s=1),
    )
    work = Work(place="host", bytes_read=16 * 10**9, bytes_written=12 * 10**9)
    seconds = node.host_ns(Signature("deepspeed::cpu_adam", (), (), work=work), Phase.OPTIMIZER) / 1e9
    assert 0.22 < seconds < 0.257


def test_files_are_read_and_written_at_the_rates_of_the_disks():
    assert host_seconds(Work(place="disk", bytes_read=4 * 10**9, bytes_written=0)) == 1.0
    assert host_seconds(Work(place="disk", bytes_read=0, bytes_written=4 * 10**9)) == 2.0


def test_a_machine_says_what_its_host_can_do():
    host = load("dgx-a100").groups[0].kind.host
    assert host.memory_bytes_per_s == 409.6e9, "16 channels of DDR4-3200"
    assert host.disk_read_bytes_per_s > host.disk_write_bytes_per_s > 1e9
