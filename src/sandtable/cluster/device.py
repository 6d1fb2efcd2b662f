"""One GPU as software sees it: what `torch.cuda.get_device_properties` would say, and how fast it is on paper."""

from dataclasses import dataclass

from sandtable.cluster.efficiency import Efficiency

__all__ = ["Device", "Rates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Dense operations per second by number type (FLOP/s; int8: integer ones). Zero: no such unit, or not known."""

    float32: int = 0
    tf32: int = 0
    float16: int = 0
    bfloat16: int = 0
    float8: int = 0
    int8: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU model. `id` is its name in the catalogue, `name` what torch calls it.

    `memory_bytes` is torch's `total_memory`: less than the number on the box, since driver and ECC keep a part.
    `memory_is_measured` says whether a real device reported it. `matmul` is the peak of the matrix units (tensor
    cores), `vector` that of the ordinary lanes, `measured_matmul` the fastest matrix product somebody measured.
    `efficiency` says how much of these peaks real kernels reach.
    """

    id: str
    name: str
    vendor: str
    architecture: str
    capability: tuple[int, int]
    num_sms: int
    warp_size: int
    max_threads_per_sm: int
    registers_per_sm: int
    shared_memory_per_block_bytes: int
    shared_memory_per_block_optin_bytes: int
    shared_memory_per_sm_bytes: int
    l2_bytes: int
    memory_bytes: int
    memory_is_measured: bool
    memory_bandwidth_bytes_per_s: int
    matmul: Rates
    vector: Rates
    measured_matmul: Rates
    efficiency: Efficiency

    @property
    def major(self) -> int:
        return self.capability[0]

    @property
    def minor(self) -> int:
        return self.capability[1]
