"""The schema of device files and generation files. The field names are the TOML keys, so each carries its unit.

`catalogue/generations/<name>.toml` holds five tables of efficiencies; a device file may replace any of them. The
dataclasses of `device.py` explain each number.
"""

from typing import Annotated, Literal

from pydantic import Field

from sandtable.toml_tables import Count, Rate, Share, Speed, Text, TomlTable

__all__ = [
    "AttentionKernelTable",
    "AttentionPassTable",
    "AttentionTable",
    "ConvolutionTable",
    "DeviceFile",
    "GemmTable",
    "GenerationFile",
    "HostEfficiencyTable",
    "PeakTable",
    "SourcedTable",
    "StreamingTable",
]

Gain = Annotated[float, Field(ge=1)]


class SourcedTable(TomlTable):
    """A table of numbers, and where they come from.

    `status` is `measured` (read off real hardware), `fitted` (chosen so that predictions meet measurements) or
    `nominal` (published by the vendor, or computed from such a number).
    """

    source: Text = Field(description="where the numbers of this table come from, such as a data sheet's title")
    status: Literal["measured", "fitted", "nominal"] = Field(description='"measured", "fitted" or "nominal"')


class GemmTable(SourcedTable):
    """[gemm]"""

    matrix_share: Share = Field(description="the share of the matrix units' peak that the best kernel reaches")
    vector_share: Share = Field(description="the share of the ordinary lanes' peak that the best kernel reaches")
    tile_us: Rate = Field(description="microseconds to fill and drain the pipeline of one tile, such as 1.0")
    misaligned_share: Share = Field(description="the remaining speed where rows are not aligned to 16 bytes")
    small_tile_loss: Rate = Field(default=1.0, description="how much of Ampere's loss with small tiles there is")
    burst_gain: Gain = Field(default=1.0, description="the gain of a benchmark of some milliseconds over a long run")
    float8_burst_gain: Gain = Field(default=1.0, description="the same for float8")


class AttentionPassTable(TomlTable):
    """One pass of one kernel."""

    share: Share = Field(description="the share of the peak that it reaches with many keys and heads of 128")
    ramp_keys: Rate = Field(description="the keys that starting and ending a block costs, such as 300")
    head_ramp: Rate = Field(default=16.0, description="the dimensions that the softmax of a key costs, such as 16")
    wide_head_share: Share = Field(default=0.9, description="the remaining speed with heads beyond 192")
    float8_share: Share = Field(default=0.75, description="the remaining share of the peak with float8")
    deterministic_share: Share = Field(default=0.6, description="the remaining speed with sums in a fixed order")
    float8_skips: bool = Field(default=True, description="whether float8 leaves out what a causal mask hides")


class AttentionKernelTable(TomlTable):
    """Both passes of one kernel."""

    forward: AttentionPassTable = Field(description="the forward pass: share, ramp_keys, ...")
    backward: AttentionPassTable = Field(description="the backward pass: share, ramp_keys, ...")


class AttentionTable(SourcedTable):
    """[attention]"""

    flash: AttentionKernelTable = Field(description="FlashAttention-2, forward and backward")
    flash3: AttentionKernelTable | None = Field(default=None, description="FlashAttention-3; as flash if left out")
    efficient: AttentionKernelTable = Field(description="memory-efficient attention (xformers), forward and backward")
    cudnn: AttentionKernelTable = Field(description="cuDNN's attention, forward and backward")
    burst_gain: Gain = Field(default=1.0, description="the gain of a benchmark of some milliseconds over a long run")


class ConvolutionTable(SourcedTable):
    """[convolution]"""

    matrix_share: Share = Field(description="the share of the matrix units' peak that the best kernel reaches")
    vector_share: Share = Field(description="the share of the ordinary lanes' peak that the best kernel reaches")
    backward_share: Share = Field(description="the speed of the gradients relative to the forward product")
    winograd_gain: Gain = Field(description="the gain of fast algorithms for 3 x 3 filters on ordinary lanes")
    nchw_share: Share = Field(description="the remaining speed of the matrix units when channels are not last")


class StreamingTable(SourcedTable):
    """[streaming]"""

    kernel_us: Rate = Field(description="microseconds of the shortest kernel, such as 2.0")
    elementwise_share: Share = Field(description="the share of the memory's bandwidth of kernels that read in order")
    normalisation_share: Share = Field(description="the share of the bandwidth of norms, softmax and sums")
    indexing_share: Share = Field(description="the share of the bandwidth of kernels that follow an index")


class HostEfficiencyTable(SourcedTable):
    """[host]"""

    forward_us: Rate = Field(description="microseconds to issue an operator in the forward pass, including Python")
    backward_us: Rate = Field(description="microseconds to issue an operator in the backward pass")
    optimizer_us: Rate = Field(description="microseconds to issue an operator of the optimizer")
    custom_us: Rate = Field(description="microseconds to issue an operator of a third-party extension")
    compiled_us: Rate = Field(description="microseconds to launch a kernel from the code of a compiled graph")
    compiled_call_us: Rate = Field(description="microseconds to call a compiled graph, with its first kernel")
    tensor_us: Rate = Field(description="microseconds for each tensor in the lists of a foreach operator")
    collective_us: Rate = Field(description="microseconds to issue a collective")
    launch_latency_us: Rate = Field(description="microseconds from the host's call to the earliest start")
    link_gb_per_s: Speed = Field(description="GB/s (10^9 bytes) between host and device memory, such as 24")


class GenerationFile(TomlTable):
    """All tables of a generation."""

    gemm: GemmTable = Field(description="the table [gemm]: matrix products")
    attention: AttentionTable = Field(description="the table [attention]: fused attention")
    convolution: ConvolutionTable = Field(description="the table [convolution]: convolutions")
    streaming: StreamingTable = Field(description="the table [streaming]: kernels that stream memory")
    host: HostEfficiencyTable = Field(description="the table [host]: what issuing work costs")


class PropertiesTable(SourcedTable):
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


class MemoryTable(SourcedTable):
    size_bytes: Count = Field(description="what torch reports as total_memory, in bytes, such as 85097971712")


class BandwidthTable(SourcedTable):
    memory_gb_per_s: Speed = Field(description="memory bandwidth in GB/s (10^9 bytes), such as 2039")


class PeakTable(SourcedTable):
    """Dense peaks in 10^12 operations a second; a missing key: no such unit, or no published number."""

    float32_tflops: Rate = Field(default=0.0, description="10^12 FLOP/s in float32")
    tf32_tflops: Rate = Field(default=0.0, description="10^12 FLOP/s in tf32")
    float16_tflops: Rate = Field(default=0.0, description="10^12 FLOP/s in float16")
    bfloat16_tflops: Rate = Field(default=0.0, description="10^12 FLOP/s in bfloat16")
    float8_tflops: Rate = Field(default=0.0, description="10^12 FLOP/s in float8")
    int8_tops: Rate = Field(default=0.0, description="10^12 operations/s in int8")


class DeviceFile(TomlTable):
    """`catalogue/devices/<id>.toml`, or the `[device]` table of a machine file."""

    name: Text = Field(description='what torch calls the device, such as "NVIDIA A100-SXM4-80GB"')
    vendor: Literal["nvidia", "amd", "cpu"] = Field(description='"nvidia", "amd" or "cpu"')
    properties: PropertiesTable = Field(description="the table [properties]")
    memory: MemoryTable = Field(description="the table [memory]")
    bandwidth: BandwidthTable = Field(description="the table [bandwidth]")
    matmul: PeakTable = Field(description="the table [matmul]: peaks of the matrix units")
    vector: PeakTable = Field(description="the table [vector]: peaks of the ordinary lanes")
    measured_matmul: PeakTable | None = Field(
        default=None, description="the table [measured_matmul]: best measured product"
    )
    generation: Text | None = Field(default=None, description='the chips whose tables it shares, such as "ampere"')
    gemm: GemmTable | None = Field(default=None, description="the table [gemm], instead of the generation's")
    attention: AttentionTable | None = Field(default=None, description="the table [attention], as [gemm]")
    convolution: ConvolutionTable | None = Field(default=None, description="the table [convolution], as [gemm]")
    streaming: StreamingTable | None = Field(default=None, description="the table [streaming], as [gemm]")
    host: HostEfficiencyTable | None = Field(default=None, description="the table [host], as [gemm]")
