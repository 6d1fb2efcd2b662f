"""Parameters, gradients and optimizer states take exactly as much of the virtual GPU's memory as a count gives.

Bytes asked for are the elements' bytes; bytes allocated are those, each tensor rounded up to a multiple of 512 as the
caching allocator does.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.examples import formulas
from tests.examples.formulas import Layout
from tests.vgpu.capturing import capture
from tests.vgpu.test_formulas import Shape

SCRIPT = Path(__file__).parent / "weigh_states.py"
TINY = Shape(num_layers=4, hidden_size=64, vocab_size=512, seq_len=32)
GPT_124M = Shape(num_layers=12, hidden_size=768, vocab_size=51200, seq_len=1024)
STEP_BYTES = 4
"""A fused optimizer keeps each parameter's step number, an fp32, on the card; the others keep it on the host."""

Shapes = list[tuple[int, ...]]


def weigh(out: Path, setup: str, *flags: object, world_size: int = 1) -> list[dict[str, list[int]]]:
    """By rank: bytes allocated and bytes asked for, of each kind of tensor."""
    capture(SCRIPT, out, setup, *flags, world_size=world_size, num_steps=9, ranks="all")
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(world_size)]


def weight(shapes: Iterable[tuple[int, ...]], element_bytes: int) -> list[int]:
    """Bytes allocated and bytes asked for, for tensors of these shapes."""
    sizes = [math.prod(dims) * element_bytes for dims in shapes]
    return [sum(-(-size // 512) * 512 for size in sizes), sum(sizes)]


def whole_shapes(shape: Shape) -> Shapes:
    """Embedding, positions, blocks, last LayerNorm, head."""
    h, vocab = shape.hidden_size, shape.vocab_size
    blocks = formulas.block_parameter_shapes(h) * shape.num_layers
    return [(vocab, h), (shape.seq_len, h), *blocks, (h,), (h,), (vocab, h)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_whole_model(tmp_path: Path, dtype: str) -> None:
    element_bytes = 4 if dtype == "float32" else 2
    once = weight(whole_shapes(TINY), element_bytes)
    found = weigh(tmp_path, "whole", "--dtype", dtype)[0]
    assert once[1] == formulas.gpt_parameters(TINY) * element_bytes
    assert found["parameters"] == once
    assert found["gradients"] == once
    assert found["states"] == [2 * size for size in once]


def test_fused_optimizer_keeps_step_numbers_too(tmp_path: Path) -> None:
    shapes = whole_shapes(TINY)
    found = weigh(tmp_path, "whole", "--fused")[0]
    steps = weight([()] * len(shapes), STEP_BYTES)
    assert found["states"] == [2 * size + step for size, step in zip(weight(shapes, 4), steps, strict=True)]


def test_large_blocks_ask_for_the_count(tmp_path: Path) -> None:
    # What is allocated may be more: a large block whose rest would be under 1 MiB is not divided.
    count = 4 * formulas.gpt_parameters(GPT_124M)
    found = weigh(tmp_path, "whole", "--size", "124m")[0]
    assert [found[kind][1] for kind in ("parameters", "gradients", "states")] == [count, count, 2 * count]
    for allocated, asked in found.values():
        assert asked <= allocated <= asked + 2**20 * 3 * len(whole_shapes(GPT_124M))


@pytest.mark.slow
def test_fsdp2_shards(tmp_path: Path) -> None:
    # 5 ranks do not divide the rows. All ranks' parameters are padded to equal size, and gradients come in one piece
    # for each unit (a block, or the rest), as they are reduced; the optimizer sees shards without padding.
    num_ranks = 5
    shapes = shard_shapes(whole_shapes(TINY), num_ranks, 0)
    num_block = sum(map(math.prod, shard_shapes(formulas.block_parameter_shapes(TINY.hidden_size), num_ranks, 0)))
    num_rest = sum(map(math.prod, shapes)) - num_block * TINY.num_layers
    for rank, found in enumerate(weigh(tmp_path, "fsdp2", world_size=num_ranks)):
        own = weight(shard_shapes(whole_shapes(TINY), num_ranks, rank), 4)
        assert own[1] == 4 * formulas.fsdp2_parameters(TINY, ranks=num_ranks, rank=rank)
        assert found["parameters"] == weight(shapes, 4)
        assert found["gradients"] == weight([(num_block,)] * TINY.num_layers + [(num_rest,)], 4)
        assert found["states"] == [2 * size for size in own]


def shard_shapes(shapes: Shapes, num_ranks: int, rank: int) -> Shapes:
    """Rows [rank x c, (rank + 1) x c) of each, c = ceil(rows / ranks)."""
    chunks = [(math.ceil(rows / num_ranks), rows, rest) for rows, *rest in shapes]
    return [(max(min(rows - rank * chunk, chunk), 0), *rest) for chunk, rows, rest in chunks]


@pytest.mark.slow
def test_shares_of_tensor_and_pipeline_ranks(tmp_path: Path) -> None:
    layout = Layout(tp=2, pp=2, dp=2, virtual_stages=2)
    flags = ("--tp", layout.tp, "--pp", layout.pp, "--schedule", "interleaved")
    for rank, found in enumerate(weigh(tmp_path, "3d", *flags, world_size=8)):
        pp_rank = rank // (layout.tp * layout.dp)
        shapes = stage_shapes(TINY, layout, pp_rank)
        once = weight(shapes, 2)
        assert once[1] == 2 * formulas.rank_parameters(TINY, layout, pp_rank=pp_rank)
        assert found["parameters"] == once
        assert found["gradients"] == weight([(once[1] // 2,)], 2), "one buffer holds all gradients"
        assert found["states"] == [2 * size for size in once]


def stage_shapes(shape: Shape, layout: Layout, pp_rank: int) -> Shapes:
    """The share of a rank: of its blocks, and of embedding or head where they are."""
    h, share, vocab = shape.hidden_size, shape.hidden_size // layout.tp, shape.vocab_size // layout.tp
    stages = layout.stages_of(pp_rank)
    shapes: Shapes = [(h,)] * 4 + [(3 * share, h), (3 * share,), (h, share), (h,)]
    shapes += [(4 * share, h), (4 * share,), (h, 4 * share), (h,)]
    shapes *= shape.num_layers // layout.pp
    if 0 in stages:
        shapes += [(vocab, h), (shape.seq_len, h)]
    if layout.num_stages - 1 in stages:
        shapes += [(h,), (h,), (vocab, h)]
    return shapes
