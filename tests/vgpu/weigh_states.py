"""Runs on virtual GPUs: what a GPT's parameters, gradients and optimizer states weigh, by torch.cuda's statistics.

    sandtable run --nproc-per-node 4 tests/vgpu/weigh_states.py OUT fsdp2|whole|3d FLAGS

Each rank writes OUT/<rank>.json: for "parameters", "gradients" and "states" the growth of memory_allocated() and of the
bytes asked for. Between the weighings only what is weighed stays alive.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import gpt_3d  # type: ignore[import-not-found]
import torch
from gpt_model import (  # type: ignore[import-not-found]
    GPT,
    GPTConfig,
    add_model_arguments,
    config_from,
    cross_entropy,
    materialize,
    synthetic_batch,
)
from job import Job, start  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

Weights = dict[str, tuple[int, int]]


class Scales:
    """Weighs what has come to stay since the last time."""

    def __init__(self) -> None:
        self.weights: Weights = {}
        self._before = self._now()

    def weigh(self, name: str) -> None:
        """Note what came, under `name`."""
        now = self._now()
        self.weights[name] = (now[0] - self._before[0], now[1] - self._before[1])
        self._before = now

    def _now(self) -> tuple[int, int]:
        return torch.cuda.memory_allocated(), torch.cuda.memory_stats()["requested_bytes.all.current"]


def main() -> None:
    """Weigh one setup."""
    out, setup = Path(sys.argv[1]), sys.argv[2]
    sys.argv = [sys.argv[0], *sys.argv[3:]]
    job = start()
    weights = SETUPS[setup](job)
    (out / f"{job.rank}.json").write_text(json.dumps(weights))
    job.finish()


def weigh_whole(job: Job) -> Weights:
    """The model in one piece, every parameter with a gradient of its own."""
    args = parse_arguments()
    config = config_from(args)
    scales = Scales()
    with torch.device("meta"):
        model = GPT(config).to(getattr(torch, args.dtype))
    materialize(model, config, device=job.device, seed=0)
    scales.weigh("parameters")
    return weigh_training(model, config, args, scales, job)


def weigh_fsdp2(job: Job) -> Weights:
    """Every parameter sharded over all ranks."""
    args = parse_arguments()
    config = config_from(args)
    mesh = init_device_mesh("cuda", (job.world_size,))
    scales = Scales()
    with torch.device("meta"):
        model = GPT(config).to(getattr(torch, args.dtype))
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    materialize(model, config, device=job.device, seed=0)
    scales.weigh("parameters")
    return weigh_training(model, config, args, scales, job)


def weigh_training(model: nn.Module, config: GPTConfig, args: argparse.Namespace, scales: Scales, job: Job) -> Weights:
    """Gradients and states come with the first step."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=args.fused or None)
    tokens, targets = (tensor.to(job.device) for tensor in synthetic_batch(config, first=0, count=2))
    scales.weigh("batch")
    cross_entropy(model(tokens), targets).backward()
    scales.weigh("gradients")
    optimizer.step()
    scales.weigh("states")
    return scales.weights


def weigh_3d(job: Job) -> Weights:
    """A rank's stages of gpt_3d.py, with its buffer of gradients."""
    args = gpt_3d.parse_arguments()
    mesh = gpt_3d.make_mesh(job, args)
    tp = gpt_3d.TensorGroup(group=mesh["tp"].get_group(), rank=mesh["tp"].get_local_rank(), size=args.tp)
    scales = Scales()
    stages = gpt_3d.make_stages(config_from(args), tp, mesh["pp"], args, job.device)
    scales.weigh("parameters")
    gradients = gpt_3d.GradientBuffer([stage.submod for stage in stages], tp=tp, dp=mesh["dp"], bucket_mb=1.0)
    scales.weigh("gradients")
    optimizer = torch.optim.AdamW(parameters(stages), fused=args.fused or None)
    optimizer.step()
    gradients.zero()
    scales.weigh("states")
    return scales.weights


def parameters(stages: list[gpt_3d.PipelineStage]) -> Iterator[Tensor]:
    """Of all stages of a rank."""
    for stage in stages:
        yield from stage.submod.parameters()


def parse_arguments() -> argparse.Namespace:
    """The flags that are left."""
    parser = argparse.ArgumentParser()
    add_model_arguments(parser)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--fused", action="store_true")
    return parser.parse_args()


SETUPS: dict[str, Callable[[Job], Weights]] = {"whole": weigh_whole, "fsdp2": weigh_fsdp2, "3d": weigh_3d}

if __name__ == "__main__":
    main()
