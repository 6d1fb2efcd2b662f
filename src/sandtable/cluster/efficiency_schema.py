"""What the tables of a generation file may say; a device file may replace any of them by its own.

`catalogue/generations/<name>.toml` holds all five. The dataclasses of `efficiency.py` say what each number means.
"""

from typing import Annotated

from pydantic import Field

from sandtable.cluster.tables import Facts, Rate, Share, Speed, Table

__all__ = ["AttentionTable", "ConvolutionTable", "GemmTable", "GenerationFile", "HostTable", "StreamingTable"]

Gain = Annotated[float, Field(ge=1)]


class GemmTable(Facts):
    """[gemm]"""

    matrix_share: Share = Field(description="the share of the matrix units' peak that the best kernel reaches")
    vector_share: Share = Field(description="the share of the ordinary lanes' peak that the best kernel reaches")
    tile_us: Rate = Field(description="microseconds to fill and drain the pipeline of one tile, such as 1.0")
    misaligned_share: Share = Field(description="what is left of the speed where rows are not aligned to 16 bytes")


class AttentionTable(Facts):
    """[attention]"""

    flash_forward_share: Share = Field(description="the share of the peak that flash attention reaches forward")
    flash_backward_share: Share = Field(description="the share of the peak that flash attention reaches backward")
    efficient_forward_share: Share = Field(description="the same for memory-efficient attention forward")
    efficient_backward_share: Share = Field(description="the same for memory-efficient attention backward")
    cudnn_forward_share: Share = Field(description="the same for cuDNN's attention forward")
    cudnn_backward_share: Share = Field(description="the same for cuDNN's attention backward")
    ramp_keys: Rate = Field(description="the number of keys at which half of the share is reached, such as 300")


class ConvolutionTable(Facts):
    """[convolution]"""

    matrix_share: Share = Field(description="the share of the matrix units' peak that the best kernel reaches")
    vector_share: Share = Field(description="the share of the ordinary lanes' peak that the best kernel reaches")
    backward_share: Share = Field(description="the speed of the gradients against that of the forward product")
    winograd_gain: Gain = Field(description="the gain of fast algorithms for 3 x 3 filters on ordinary lanes")
    nchw_share: Share = Field(description="what is left of the matrix units' speed when channels are not last")


class StreamingTable(Facts):
    """[streaming]"""

    kernel_us: Rate = Field(description="microseconds of the shortest kernel, such as 2.0")
    elementwise_share: Share = Field(description="the share of the memory's bandwidth of kernels that read in order")
    normalisation_share: Share = Field(description="the share of the bandwidth of norms, softmax and sums")
    indexing_share: Share = Field(description="the share of the bandwidth of kernels that follow an index")


class HostTable(Facts):
    """[host]"""

    forward_us: Rate = Field(description="microseconds to issue an operator in the forward pass, Python included")
    backward_us: Rate = Field(description="microseconds to issue an operator in the backward pass")
    optimizer_us: Rate = Field(description="microseconds to issue an operator of the optimizer")
    custom_us: Rate = Field(description="microseconds to issue an operator of somebody's extension")
    tensor_us: Rate = Field(description="microseconds for each tensor in the lists of a foreach operator")
    collective_us: Rate = Field(description="microseconds to issue a collective")
    launch_latency_us: Rate = Field(description="microseconds from the host's call to the earliest start")
    link_gb_per_s: Speed = Field(description="GB/s (10^9 bytes) between host and device memory, such as 24")


class GenerationFile(Table):
    """All tables of a generation."""

    gemm: GemmTable = Field(description="the table [gemm]: matrix products")
    attention: AttentionTable = Field(description="the table [attention]: fused attention")
    convolution: ConvolutionTable = Field(description="the table [convolution]: convolutions")
    streaming: StreamingTable = Field(description="the table [streaming]: kernels that stream memory")
    host: HostTable = Field(description="the table [host]: what issuing work costs")
