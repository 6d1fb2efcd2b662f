"""How much of what a data sheet promises a device gives to real kernels, and what the host in front of it needs.

A data sheet is the horsepower of an engine on a test bench; these are the losses between the bench and the road. Each
table belongs to one family of operators and says where its numbers come from: `status` is "measured" (read off such a
device), "fitted" (chosen so that predictions meet published times, which `source` names) or "nominal" (neither).
"""

from dataclasses import dataclass

__all__ = ["Attention", "Convolution", "Efficiency", "Facts", "Gemm", "Host", "Streaming"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Where the numbers of a table come from."""

    source: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(Facts):
    """Matrix products: shares of a peak that the inner loop of the best kernel reaches.

    `matrix_share` is of the matrix units (tensor cores), `vector_share` of the ordinary lanes. `tile_ns` is what
    filling and draining the pipeline costs each tile. `misaligned_share` is what is left of the speed where rows do
    not start at multiples of 16 bytes.
    """

    matrix_share: float
    vector_share: float
    tile_ns: float
    misaligned_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Facts):
    """Fused attention: shares of the matrix units' peak by kernel, for long sequences and 128 numbers a head.

    `ramp_keys` is the number of keys at which half of that is reached.
    """

    flash_forward_share: float
    flash_backward_share: float
    efficient_forward_share: float
    efficient_backward_share: float
    cudnn_forward_share: float
    cudnn_backward_share: float
    ramp_keys: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution(Facts):
    """Convolutions as implicit matrix products.

    `backward_share` is the speed of the two gradients against that of the forward product. `winograd_gain` is how much
    faster a 3 x 3 filter of stride 1 runs on ordinary lanes than its multiplications say, since fast algorithms do
    fewer. `nchw_share` is what is left of the matrix units' speed when channels are not the last dimension.
    """

    matrix_share: float
    vector_share: float
    backward_share: float
    winograd_gain: float
    nchw_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming(Facts):
    """Kernels that stream memory: `kernel_ns` for the shortest kernel, and shares of the memory's bandwidth.

    `elementwise_share` is for kernels that read and write in order, `normalisation_share` for those that reduce rows
    on the way (norms, softmax, sums), `indexing_share` for those that read or write where an index says.
    """

    kernel_ns: float
    elementwise_share: float
    normalisation_share: float
    indexing_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Facts):
    """What issuing work costs the host, views and Python around it included, in ns.

    `tensor_ns` is for each tensor in the lists that a foreach or fused operator takes. `launch_latency_ns` is from the
    host's call to the earliest start on the device. `link_bytes_per_s` is the way to the device's memory.
    """

    forward_ns: float
    backward_ns: float
    optimizer_ns: float
    custom_ns: float
    tensor_ns: float
    collective_ns: float
    launch_latency_ns: float
    link_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """All tables of one device; `generation` is the catalogue's name for chips that share them."""

    generation: str
    gemm: Gemm
    attention: Attention
    convolution: Convolution
    streaming: Streaming
    host: Host
