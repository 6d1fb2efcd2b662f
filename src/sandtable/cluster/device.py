"""One GPU as software sees it: its properties as `torch.cuda` reports them, its peaks, and what kernels reach of them.

A data sheet is the horsepower of an engine on a test bench; an `Efficiency` holds the losses between the bench and the
road. Each of its tables belongs to one family of operators and names the origin of its numbers: `status` is "measured"
(read off such a device), "fitted" (chosen so that predictions meet published times, which `source` names) or "nominal"
(neither).
"""

from dataclasses import dataclass

__all__ = [
    "AttentionEfficiency",
    "AttentionKernel",
    "AttentionPass",
    "ConvolutionEfficiency",
    "Device",
    "Efficiency",
    "GemmEfficiency",
    "HostEfficiency",
    "Origin",
    "Rates",
    "StreamingEfficiency",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a table's numbers come from; `status` is measured, fitted or nominal."""

    source: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmEfficiency(Origin):
    """Matrix products: shares of a peak that the inner loop of the best kernel reaches.

    `matrix_share` is of the matrix units (tensor cores), `vector_share` of the ordinary lanes. `tile_ns` is what
    filling and draining the pipeline costs per tile. `misaligned_share` is what remains of the speed where rows do not
    start at multiples of 16 bytes. `small_tile_loss` is how much of Ampere's loss with small tiles there is (0: none).
    `burst_gain` is how much faster the matrix units run in a benchmark of some milliseconds than in a long run;
    `float8_burst_gain` is less, since products of 8 bits draw so much power that their clocks are low from the start.
    """

    matrix_share: float
    vector_share: float
    tile_ns: float
    misaligned_share: float
    small_tile_loss: float
    burst_gain: float
    float8_burst_gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPass:
    """One pass of one kernel of attention: `share` of the matrix units' peak, for many keys and heads of 128.

    Each query costs as much as `ramp_keys` keys more, and each key as much as `head_ramp` dimensions more: what starts
    a block, and what the softmax needs. `wide_head_share` is what remains of the speed with heads beyond 192,
    `float8_share` with float8 relative to its higher peak, `deterministic_share` with sums in a fixed order.
    `float8_skips`: whether the kernel in float8 leaves out what a causal mask hides.
    """

    share: float
    ramp_keys: float
    head_ramp: float
    wide_head_share: float
    float8_share: float
    deterministic_share: float
    float8_skips: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel:
    """Both passes of one kernel."""

    forward: AttentionPass
    backward: AttentionPass


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionEfficiency(Origin):
    """Fused attention by kernel: FlashAttention 2 and 3, cuDNN's, and the memory-efficient one of xformers.

    `burst_gain` is as in `GemmEfficiency`.
    """

    flash: AttentionKernel
    flash3: AttentionKernel
    efficient: AttentionKernel
    cudnn: AttentionKernel
    burst_gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionEfficiency(Origin):
    """Convolutions as implicit matrix products.

    `backward_share` is the speed of the two gradients relative to the forward product. `winograd_gain` is how much
    faster a 3 x 3 filter of stride 1 runs on ordinary lanes than its multiplications suggest, since fast algorithms
    need fewer. `nchw_share` is what remains of the matrix units' speed when channels are not the last dimension.
    """

    matrix_share: float
    vector_share: float
    backward_share: float
    winograd_gain: float
    nchw_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingEfficiency(Origin):
    """Kernels that stream memory: `kernel_ns` for the shortest kernel, and shares of the memory bandwidth.

    `elementwise_share` is for kernels that read and write in order, `normalisation_share` for those that reduce rows
    on the way (norms, softmax, sums), `indexing_share` for those that follow an index.
    """

    kernel_ns: float
    elementwise_share: float
    normalisation_share: float
    indexing_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEfficiency(Origin):
    """What issuing work costs the host, in ns, including views and the Python around it.

    `compiled_ns` is per kernel of a compiled graph, `compiled_call_ns` for its call and its first kernel. `tensor_ns`
    is per tensor in the lists that a foreach or fused operator takes. `launch_latency_ns` is from the host's call to
    the earliest start on the device. `link_bytes_per_s` is the rate to and from device memory.
    """

    forward_ns: float
    backward_ns: float
    optimizer_ns: float
    custom_ns: float
    compiled_ns: float
    compiled_call_ns: float
    tensor_ns: float
    collective_ns: float
    launch_latency_ns: float
    link_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """All tables of one device; `generation` is the catalogue's name for chips that share them."""

    generation: str
    gemm: GemmEfficiency
    attention: AttentionEfficiency
    convolution: ConvolutionEfficiency
    streaming: StreamingEfficiency
    host: HostEfficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Dense operations per second by number type (FLOP/s; int8: integer operations). Zero: no such unit, or unknown."""

    float32: int = 0
    tf32: int = 0
    float16: int = 0
    bfloat16: int = 0
    float8: int = 0
    int8: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU model. `id` is its name in the catalogue, `name` is torch's.

    `memory_bytes` is torch's `total_memory`: less than advertised, since the driver and ECC keep a part.
    `memory_is_measured`: whether a real device reported it. `matmul` is the peak of the matrix units (tensor
    cores), `vector` that of the ordinary lanes, `measured_matmul` the fastest matrix product anyone measured.
    `efficiency` is how much of these peaks real kernels reach.
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
