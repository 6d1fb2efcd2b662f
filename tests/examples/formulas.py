"""Closed formulas for the examples: parameters, FLOPs and every collective of a training step. No torch.

Words: T tokens in a micro-batch (batch x seq), s seq, h hidden, V vocabulary, L layers, t tensor-parallel ranks, e
bytes an element.

FLOPs count matrix products only, 2 m n k each, forward and backward (a linear's backward is two products): the
linears of the blocks, the head, and attention as if not causal, 2 products forward and 5 backward (flash attention
works out the scores again). Not counted: embedding look-up, LayerNorm, GELU, softmax, biases, residual additions,
loss, optimizer.

Bytes are what the calling rank puts in and gets out: all_reduce n / n, all_gather share / whole, reduce_scatter whole
/ share, send n / 0, recv 0 / n. Every function gives one step of one rank, as a Counter of `Call`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Shape(Protocol):
    """What the formulas need to know of a GPT; `examples/gpt_model.py`'s GPTConfig has it."""

    @property
    def num_layers(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def seq_len(self) -> int: ...


class Call(NamedTuple):
    """One collective, as one rank sees it, over the ranks of one mesh axis."""

    op: str
    axis: str
    bytes_in: int
    bytes_out: int


Calls = Counter[Call]


def all_reduce(axis: str, size: int) -> Call:
    """`size` bytes in, the same out."""
    return Call("all_reduce", axis, size, size)


def all_gather(axis: str, whole: int, ranks: int) -> Call:
    """A share of `whole` in, all of it out."""
    return Call("all_gather", axis, whole // ranks, whole)


def reduce_scatter(axis: str, whole: int, ranks: int) -> Call:
    """`whole` in, a share of it out."""
    return Call("reduce_scatter", axis, whole, whole // ranks)


# --- The GPT in one piece (gpt_model.GPT) ---


def block_parameter_shapes(hidden: int) -> list[tuple[int, ...]]:
    """In the order of use: LayerNorm, qkv, proj, LayerNorm, fc1, fc2; weight before bias. 12 h^2 + 13 h in all."""
    h = hidden
    return [
        *[(h,), (h,)],
        *[(3 * h, h), (3 * h,)],
        *[(h, h), (h,)],
        *[(h,), (h,)],
        *[(4 * h, h), (4 * h,)],
        *[(h, 4 * h), (h,)],
    ]


def gpt_parameters(shape: Shape, *, tied_head: bool = False) -> int:
    """L (12 h^2 + 13 h) + (V + s) h + 2 h, and V h again for a head of its own."""
    h, vocab = shape.hidden_size, shape.vocab_size
    heads = 1 if tied_head else 2
    return shape.num_layers * (12 * h * h + 13 * h) + (heads * vocab + shape.seq_len) * h + 2 * h


def block_forward_flops(shape: Shape, *, tokens: int) -> int:
    """24 T h^2 for the linears, 4 T s h for attention."""
    return 24 * tokens * shape.hidden_size**2 + 4 * tokens * shape.seq_len * shape.hidden_size


def block_backward_flops(shape: Shape, *, tokens: int) -> int:
    """Twice the linears, and 5 products of attention instead of 2."""
    return 48 * tokens * shape.hidden_size**2 + 10 * tokens * shape.seq_len * shape.hidden_size


def gpt_step_flops(shape: Shape, *, tokens: int, recompute: bool = False) -> int:
    """One step over `tokens` tokens with the whole model on one rank (DDP, FSDP), of that rank.

    `recompute` is `checkpoint(use_reentrant=False)`: it stops when all that backward needs is there again, so a
    block's last product (fc2, 8 T h^2) is not repeated.
    """
    head = 6 * tokens * shape.hidden_size * shape.vocab_size
    block = block_forward_flops(shape, tokens=tokens) + block_backward_flops(shape, tokens=tokens)
    if recompute:
        block += block_forward_flops(shape, tokens=tokens) - 8 * tokens * shape.hidden_size**2
    return shape.num_layers * block + head


# --- DDP (gpt_ddp.py, resnet_ddp.py) ---


def gpt_gradients_in_order(shape: Shape, *, amp: bool = False) -> list[int]:
    """Elements of each gradient in the order backward finishes them: what was used last comes first.

    Of a linear the bias comes before the weight, or after it under autocast, where both first pass through a cast.
    """
    h = shape.hidden_size
    sizes = [math.prod(dims) for dims in block_parameter_shapes(h)]
    pairs = [sizes[i : i + 2] for i in range(len(sizes) - 2, -1, -2)]
    block = [size for pair in pairs for size in (pair if amp else reversed(pair))]
    embedding = [shape.seq_len * h, shape.vocab_size * h]
    return [shape.vocab_size * h, h, h, *(block * shape.num_layers), *embedding]


def ddp_buckets(gradients: Sequence[int], *, bucket_bytes: float, element_bytes: int = 4) -> list[int]:
    """Bytes of each bucket: DDP fills one until it has at least `bucket_bytes`, then begins the next."""
    buckets = [0]
    for gradient in gradients:
        if buckets[-1] >= int(bucket_bytes):
            buckets.append(0)
        buckets[-1] += gradient * element_bytes
    return buckets


def ddp_step_calls(gradients: Sequence[int], *, step: int, bucket_bytes: float, buffers: Sequence[int] = ()) -> Calls:
    """Step number `step` (from 1) of DDP over fp32 gradients, given in the order backward finishes them, and the loss.

    Step 1: one bucket holds everything. Step 2: rank 0 tells the others the buckets it chose (the number and the
    parameters' order, then the buckets' sizes; int32). From then on: the buckets. `buffers`: bytes of the buffers of
    each dtype, which rank 0 broadcasts before every forward that will synchronise.
    """
    buckets = ddp_buckets(gradients, bucket_bytes=bucket_bytes)
    calls = Counter(all_reduce("dp", size) for size in (buckets if step > 1 else [4 * sum(gradients)]))
    if step == 2:
        calls[Call("broadcast", "dp", 4 * (len(gradients) + 1), 4 * (len(gradients) + 1))] += 1
        calls[Call("broadcast", "dp", 4 * len(buckets), 4 * len(buckets))] += 1
    for size in buffers:
        calls[Call("broadcast", "dp", size, size)] += 1
    calls[all_reduce("dp", 4)] += 1
    return calls


# --- FSDP2 (gpt_fsdp2.py) ---


def fsdp2_step_calls(
    shape: Shape,
    *,
    ranks: int,
    param_bytes: int,
    reduce_bytes: int,
    num_micro: int = 1,
    reshard: bool = True,
    clip: bool = True,
) -> Calls:
    """One step: a unit is a block, or the root with embedding, last LayerNorm and head.

    Every parameter is cut along dim 0 into equal shares, the last padded. A micro-batch gathers each block for forward
    and, if it was dropped (`reshard`), again for backward; the root once. The last micro-batch reduce-scatters each
    unit. Clipping adds up one fp32 norm for each parameter.
    """
    h = shape.hidden_size
    block = block_parameter_shapes(h)
    root = [(shape.vocab_size, h), (shape.seq_len, h), (h,), (h,), (shape.vocab_size, h)]
    calls: Calls = Counter()
    for unit, count, is_root in ((block, shape.num_layers, False), (root, 1, True)):
        padded = sum(math.ceil(dims[0] / ranks) * ranks * math.prod(dims[1:]) for dims in unit)
        per_micro = 2 if reshard and not is_root else 1
        calls[all_gather("dp", padded * param_bytes, ranks)] += count * per_micro * num_micro
        calls[reduce_scatter("dp", padded * reduce_bytes, ranks)] += count
    if clip:
        calls[all_reduce("dp", 4 * (len(block) * shape.num_layers + len(root)))] += 1
    calls[all_reduce("dp", 4)] += 1
    return calls


def fsdp2_parameters(shape: Shape, *, ranks: int, rank: int) -> int:
    """Elements that rank `rank` keeps: of each parameter rows [rank x c, (rank + 1) x c), c = ceil(rows / ranks)."""
    h = shape.hidden_size
    shapes: list[tuple[int, ...]] = block_parameter_shapes(h) * shape.num_layers
    shapes += [(shape.vocab_size, h), (shape.seq_len, h), (h,), (h,), (shape.vocab_size, h)]
    total = 0
    for rows, *rest in shapes:
        chunk = math.ceil(rows / ranks)
        total += max(min(rows - rank * chunk, chunk), 0) * math.prod(rest)
    return total


# --- DTensor tensor + sequence parallel (gpt_tp.py) ---


def dtensor_tp_parameters(shape: Shape, *, tp: int) -> int:
    """Split: linears' weights, qkv's and fc1's biases, embedding, head. Whole: LayerNorms, other biases, positions."""
    h = shape.hidden_size
    block = (12 * h * h + 7 * h) // tp + 6 * h
    return shape.num_layers * block + 2 * shape.vocab_size * h // tp + shape.seq_len * h + 2 * h


def dtensor_tp_flops(shape: Shape, *, tokens: int, tp: int, recompute: bool = False) -> int:
    """Every product is split over the ranks."""
    return gpt_step_flops(shape, tokens=tokens, recompute=recompute) // tp


def dtensor_tp_step_calls(
    shape: Shape, *, batch: int, tp: int, dp: int, element_bytes: int, recompute: bool = False
) -> Calls:
    """One step of one micro-batch.

    Activations, T h e bytes whole: a block gathers before qkv and fc1 and scatters after proj and fc2, and the other
    way round in backward; the embedding scatters once (backward gathers), the head gathers once (backward scatters).
    Recomputing a block repeats its forward but for the scatter after fc2. The loss exchanges three fp32 numbers a
    token, one at a time. Gradients: of the LayerNorms a partial sum (2 L + 1 pairs), of the positions a share; then
    all of them over dp.
    """
    h, num_layers, tokens = shape.hidden_size, shape.num_layers, batch * shape.seq_len
    gather = all_gather("tp", tokens * h * element_bytes, tp)
    scatter = reduce_scatter("tp", tokens * h * element_bytes, tp)
    calls: Calls = Counter({gather: 4 * num_layers + 2, scatter: 4 * num_layers + 2})
    if recompute:
        calls[gather] += 2 * num_layers
        calls[scatter] += num_layers
    calls[all_reduce("tp", 4 * tokens)] += 3
    calls[all_reduce("tp", h * element_bytes)] += 2 * (2 * num_layers + 1)
    calls[all_gather("tp", shape.seq_len * h * element_bytes, tp)] += 1
    if dp > 1:
        for dims in _dtensor_local_shapes(shape, tp):
            calls[all_reduce("dp", math.prod(dims) * element_bytes)] += 1
    calls[all_reduce("dp", 4)] += 1
    return calls


def _dtensor_local_shapes(shape: Shape, tp: int) -> list[tuple[int, ...]]:
    h, share = shape.hidden_size, shape.hidden_size // tp
    norm: list[tuple[int, ...]] = [(h,), (h,)]
    attention: list[tuple[int, ...]] = [(3 * share, h), (3 * share,), (h, share), (h,)]
    mlp: list[tuple[int, ...]] = [(4 * share, h), (4 * share,), (h, 4 * share), (h,)]
    vocabulary = (shape.vocab_size // tp, h)
    blocks = (norm + attention + norm + mlp) * shape.num_layers
    return [vocabulary, (shape.seq_len, h), *blocks, *norm, vocabulary]


# --- Pipeline (gpt_pp.py) and tensor x pipeline x data (gpt_3d.py) ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a step is split. `virtual_stages` is 1 unless interleaved; gpt_pp.py is tp = dp = 1."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    micro_batch: int = 1
    num_micro: int = 1
    element_bytes: int = 2
    virtual_stages: int = 1
    sequence_parallel: bool = False
    recompute: bool = False
    bucket_bytes: int = 256 * 2**20

    def stages_of(self, pp_rank: int) -> range:
        """The stages a rank holds."""
        return range(pp_rank, self.num_stages, self.pp)

    @property
    def num_stages(self) -> int:
        """Of the whole pipeline."""
        return self.pp * self.virtual_stages


def rank_parameters(shape: Shape, layout: Layout, *, pp_rank: int) -> int:
    """Elements on a rank: whole blocks' share, and embedding and positions, or last LayerNorm and head."""
    return rank_replicated(shape, layout, pp_rank=pp_rank) + _rank_split(shape, layout, pp_rank=pp_rank)


def rank_replicated(shape: Shape, layout: Layout, *, pp_rank: int) -> int:
    """Of these, the elements every tp rank holds whole: 6 h a block, s h positions, 2 h in the last LayerNorm."""
    h, stages = shape.hidden_size, layout.stages_of(pp_rank)
    ends = (shape.seq_len * h if 0 in stages else 0) + (2 * h if layout.num_stages - 1 in stages else 0)
    return _rank_layers(shape, layout) * 6 * h + ends


def _rank_split(shape: Shape, layout: Layout, *, pp_rank: int) -> int:
    h, stages = shape.hidden_size, layout.stages_of(pp_rank)
    num_ends = (0 in stages) + (layout.num_stages - 1 in stages)
    return (_rank_layers(shape, layout) * (12 * h * h + 7 * h) + num_ends * shape.vocab_size * h) // layout.tp


def _rank_layers(shape: Shape, layout: Layout) -> int:
    return shape.num_layers // layout.pp


def rank_step_flops(shape: Shape, layout: Layout, *, pp_rank: int, reentrant: bool = True) -> int:
    """One step of a rank. gpt_3d.py recomputes a whole block (`reentrant`); gpt_pp.py all but its last product."""
    tokens = layout.micro_batch * shape.seq_len
    block = block_forward_flops(shape, tokens=tokens) + block_backward_flops(shape, tokens=tokens)
    if layout.recompute:
        block += block_forward_flops(shape, tokens=tokens)
        block -= 0 if reentrant else 8 * tokens * shape.hidden_size**2
    has_head = layout.num_stages - 1 in layout.stages_of(pp_rank)
    head = 6 * tokens * shape.hidden_size * shape.vocab_size if has_head else 0
    return layout.num_micro * (_rank_layers(shape, layout) * block + head) // layout.tp


def pipeline_calls(shape: Shape, layout: Layout, *, pp_rank: int, step: int) -> Calls:
    """A micro-batch crosses each border between stages once forward (T h e, or a tp share of it) and once backward.

    In step 1 the stages also agree, with one int32 each way over every border, that shapes are known.
    """
    whole = layout.micro_batch * shape.seq_len * shape.hidden_size * layout.element_bytes
    size = whole // layout.tp if layout.sequence_parallel else whole
    calls: Calls = Counter()
    if layout.pp == 1:
        return calls
    for stage in layout.stages_of(pp_rank):
        borders = (stage > 0) + (stage < layout.num_stages - 1)
        for num_bytes, count in ((size, layout.num_micro), (4, step == 1)):
            calls[Call("send", "pp", num_bytes, 0)] += borders * count
            calls[Call("recv", "pp", 0, num_bytes)] += borders * count
    return +calls


def tensor_calls(shape: Shape, layout: Layout, *, pp_rank: int) -> Calls:
    """gpt_3d.py's exchanges over tp, T h e bytes whole.

    Without sequence parallelism: a block all-reduces twice forward and twice backward, the embedding once forward,
    the head once backward. With it: a block gathers and scatters twice each way, and so does, once each way, the
    embedding or the head. Recomputing repeats a block's forward. The loss all-reduces one, then two fp32 numbers a
    token.
    """
    calls: Calls = Counter()
    if layout.tp == 1:
        return calls
    tokens = layout.micro_batch * shape.seq_len
    whole = tokens * shape.hidden_size * layout.element_bytes
    stages, num_layers = layout.stages_of(pp_rank), _rank_layers(shape, layout)
    num_ends = (0 in stages) + (layout.num_stages - 1 in stages)
    passes = 3 if layout.recompute else 2
    if layout.sequence_parallel:
        count = layout.num_micro * (2 * passes * num_layers + num_ends)
        calls[all_gather("tp", whole, layout.tp)] += count
        calls[reduce_scatter("tp", whole, layout.tp)] += count
        replicated = rank_replicated(shape, layout, pp_rank=pp_rank)
        calls[all_reduce("tp", replicated * layout.element_bytes)] += 1
    else:
        calls[all_reduce("tp", whole)] += layout.num_micro * (2 * passes * num_layers + num_ends)
    if layout.num_stages - 1 in stages:
        calls[all_reduce("tp", 4 * tokens)] += layout.num_micro
        calls[all_reduce("tp", 8 * tokens)] += layout.num_micro
    return calls


def data_calls(shape: Shape, layout: Layout, *, pp_rank: int) -> Calls:
    """gpt_3d.py's gradients over dp: one buffer in buckets, the last smaller. And the loss, where the last stage is."""
    calls: Calls = Counter()
    if layout.dp > 1:
        total = rank_parameters(shape, layout, pp_rank=pp_rank) * layout.element_bytes
        bucket = layout.bucket_bytes // layout.element_bytes * layout.element_bytes
        calls[all_reduce("dp", bucket)] += total // bucket
        calls[all_reduce("dp", total % bucket)] += total % bucket > 0
    if layout.num_stages - 1 in layout.stages_of(pp_rank):
        calls[all_reduce("dp", 4)] += 1
    return +calls


def rank_step_calls(shape: Shape, layout: Layout, *, pp_rank: int, step: int) -> Calls:
    """Everything a rank of gpt_3d.py exchanges in one step."""
    calls = pipeline_calls(shape, layout, pp_rank=pp_rank, step=step)
    calls += tensor_calls(shape, layout, pp_rank=pp_rank)
    calls += data_calls(shape, layout, pp_rank=pp_rank)
    return calls


# --- ResNet (resnet_ddp.py) ---


class Convolution(NamedTuple):
    """One convolution: channels in and out, kernel, and the side of the picture it makes."""

    channels: int
    outer: int
    kernel: int
    side: int


def resnet_convolutions(
    *, counts: Sequence[int], is_bottleneck: bool, width: int, image_size: int
) -> list[Convolution]:
    """All of them, stem first. A stride of 2 with padding k // 2 gives ceil(side / 2)."""
    side = math.ceil(image_size / 2)
    layers = [Convolution(3, width, 7, side)]
    side = math.ceil(side / 2)
    channels = width
    for group, count in enumerate(counts):
        inner = width * 2**group
        outer = inner * 4 if is_bottleneck else inner
        for i in range(count):
            before = side
            halves = group > 0 and i == 0
            side = math.ceil(side / 2) if halves else side
            if is_bottleneck:
                layers += [Convolution(channels, inner, 1, before), Convolution(inner, inner, 3, side)]
                layers += [Convolution(inner, outer, 1, side)]
            else:
                layers += [Convolution(channels, inner, 3, side), Convolution(inner, outer, 3, side)]
            if halves or channels != outer:
                layers.append(Convolution(channels, outer, 1, side))
            channels = outer
    return layers


def resnet_parameters(layers: Sequence[Convolution], *, num_classes: int) -> int:
    """Kernels, two numbers a channel for each batch norm, and the classifier's weight and bias."""
    kernels = sum(c.channels * c.outer * c.kernel**2 + 2 * c.outer for c in layers)
    return kernels + layers_width(layers) * num_classes + num_classes


def resnet_buffers(layers: Sequence[Convolution]) -> tuple[int, int]:
    """Bytes of batch norm's buffers: running mean and variance (fp32), number of batches (int64)."""
    return 8 * sum(c.outer for c in layers), 8 * len(layers)


def resnet_step_flops(layers: Sequence[Convolution], *, batch: int, num_classes: int) -> int:
    """Three products a convolution (the stem two: pictures need no gradient) and three for the classifier."""
    products = [2 * batch * c.side**2 * c.outer * c.channels * c.kernel**2 for c in layers]
    return 3 * sum(products) - products[0] + 3 * 2 * batch * layers_width(layers) * num_classes


def layers_width(layers: Sequence[Convolution]) -> int:
    """Channels that reach the classifier."""
    return max(c.outer for c in layers)
