"""What a device file may say. The field names are the TOML keys, so each carries its unit.

Every table of numbers names its `source` and its `status`: `measured` (read off a real device) or `nominal` (published
by the vendor, or worked out from such a number).
"""

from typing import Annotated, Literal

from pydantic import Field

from sandtable.cluster.efficiency_schema import (
    AttentionTable,
    ConvolutionTable,
    GemmTable,
    HostTable,
    StreamingTable,
)
from sandtable.cluster.tables import Count, Rate, Speed, Text
from sandtable.cluster.tables import Facts as _Facts
from sandtable.cluster.tables import Table as _Table

__all__ = ["DeviceFile", "Peak"]


class Properties(_Facts):
    """What the device is made of, as `torch.cuda.get_device_properties` reports it."""

    architecture: Text = Field(description='the compiler\'s name, such as "sm_80" or "gfx942"')
    capability: Annotated[list[int], Field(min_length=2, max_length=2)] = Field(
        description="major and minor compute capability, such as [8, 0]"
    )
    num_sms: Count = Field(description="the number of streaming multiprocessors (compute units)")
    warp_size: Count = Field(default=32, description="threads in a warp (wavefront)")
    max_threads_per_sm: Count = Field(default=2048, description="resident threads of one multiprocessor")
    registers_per_sm: Count = Field(default=65536, description="32-bit registers of one multiprocessor")
    shared_memory_per_block_bytes: Count = Field(default=49152, description="bytes a block gets without opting in")
    shared_memory_per_block_optin_bytes: Count = Field(description="bytes a block can opt in to")
    shared_memory_per_sm_bytes: Count = Field(description="bytes of shared memory of one multiprocessor")
    l2_bytes: Count = Field(description="bytes of L2 cache as torch reports it")


class Memory(_Facts):
    size_bytes: Count = Field(description="what torch reports as total_memory, in bytes, such as 85097971712")


class Bandwidth(_Facts):
    memory_gb_per_s: Speed = Field(description="memory bandwidth in GB/s (10^9 bytes), such as 2039")


class Peak(_Facts):
    """Dense peaks in 10^12 operations a second; a missing key: no such unit, or no published number."""

    float32_tflops: Rate = Field(default=0.0, description="10^12 FLOP/s in float32")
    tf32_tflops: Rate = Field(default=0.0, description="10^12 FLOP/s in tf32")
    float16_tflops: Rate = Field(default=0.0, description="10^12 FLOP/s in float16")
    bfloat16_tflops: Rate = Field(default=0.0, description="10^12 FLOP/s in bfloat16")
    float8_tflops: Rate = Field(default=0.0, description="10^12 FLOP/s in float8")
    int8_tops: Rate = Field(default=0.0, description="10^12 operations/s in int8")


class DeviceFile(_Table):
    """`catalogue/devices/<id>.toml`, or the `[device]` table of a machine file."""

    name: Text = Field(description='what torch calls the device, such as "NVIDIA A100-SXM4-80GB"')
    vendor: Literal["nvidia", "amd", "cpu"] = Field(description='"nvidia", "amd" or "cpu"')
    properties: Properties = Field(description="the table [properties]")
    memory: Memory = Field(description="the table [memory]")
    bandwidth: Bandwidth = Field(description="the table [bandwidth]")
    matmul: Peak = Field(description="the table [matmul]: peaks of the matrix units")
    vector: Peak = Field(description="the table [vector]: peaks of the ordinary lanes")
    measured_matmul: Peak | None = Field(default=None, description="the table [measured_matmul]: best measured product")
    generation: Text | None = Field(default=None, description='the chips whose tables it shares, such as "ampere"')
    gemm: GemmTable | None = Field(default=None, description="the table [gemm], in the place of the generation's")
    attention: AttentionTable | None = Field(default=None, description="the table [attention], as [gemm]")
    convolution: ConvolutionTable | None = Field(default=None, description="the table [convolution], as [gemm]")
    streaming: StreamingTable | None = Field(default=None, description="the table [streaming], as [gemm]")
    host: HostTable | None = Field(default=None, description="the table [host], as [gemm]")
