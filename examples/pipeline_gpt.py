"""A plain GPT split three ways by sandtable.methods: replicas x stages of layers x parts of every layer (dp x pp x tp).

    torchrun --standalone --nproc-per-node 8 examples/pipeline_gpt.py --pp 2 --tp 2
    torchrun --standalone --nproc-per-node 4 examples/pipeline_gpt.py --pp 4 --schedule pipedream --steps 8

The model of gpt_model.py is unchanged: a stage is some of its layers, and the plan names what is split in them.
gpt_3d.py does the same with torch's own parts.
"""

import argparse

import torch
from gpt_model import GPT, add_model_arguments, config_from, materialize, synthetic_batch
from job import require_divides, start
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from sandtable.methods.pipeline import Flush, GPipe, PipeDream, PipeDream2BW, Pipeline
from sandtable.methods.tensor import TensorParallel, TensorPlan

SCHEDULES = {"gpipe": GPipe(4), "flush": Flush(4), "pipedream": PipeDream(), "2bw": PipeDream2BW(4)}


def main() -> None:
    """Run on every rank."""
    args = parse_arguments()
    job = start()
    config = config_from(args)
    require_divides(args.tp * args.pp, job.world_size, names=("tp x pp", "world size"))
    require_divides(args.pp, config.num_layers, names=("pp", "num_layers"))
    shape = (job.world_size // (args.pp * args.tp), args.pp, args.tp)
    mesh = init_device_mesh(job.device.type, shape, mesh_dim_names=("dp", "pp", "tp"))
    dp, pp = mesh["dp"], mesh["pp"]

    held, per_stage = pp.get_local_rank(), config.num_layers // args.pp
    with torch.device("meta"):
        stage = GPT(config, layers=range(held * per_stage, (held + 1) * per_stage))
    materialize(stage, config, device=job.device, seed=args.seed)
    split = TensorParallel(stage, plan=plan_of(stage), group=mesh["tp"].get_group())
    stages: list[nn.Module | None] = [stage if number == held else None for number in range(args.pp)]
    pipeline = Pipeline(
        stages,
        lambda parameters: torch.optim.AdamW(parameters, lr=args.lr, weight_decay=0.1),
        loss=split.cross_entropy,
        schedule=SCHEDULES[args.schedule],
        group=pp.get_group(),
        data_group=dp.get_group(),
    )
    for step in range(1, args.steps + 1):
        first = ((step - 1) * dp.size() + dp.get_local_rank()) * args.batch
        loss = pipeline.step(*synthetic_batch(config, first=first, count=args.batch))
        if loss is not None:
            job.print_loss(step, loss.item(), on_rank=job.world_size - 1)
    pipeline.close()
    job.finish()


def plan_of(stage: GPT) -> TensorPlan:
    """Return the plan. Rows of `qkv` are grouped by head, and a block takes the number of heads from its width."""
    layers = {"qkv": "column", "proj": "row", "fc1": "column", "fc2": "row"}
    if stage.is_first:
        layers["wte"] = "vocabulary"
    if stage.is_last:
        layers["head"] = "vocabulary"
    return TensorPlan(layers)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="GPT with sandtable's data, pipeline and tensor parallelism")
    add_model_arguments(parser)
    parser.add_argument("--tp", type=int, default=1, help="ranks that share every layer")
    parser.add_argument("--pp", type=int, default=2, help="stages of layers")
    parser.add_argument("--schedule", choices=SCHEDULES, default="flush")
    parser.add_argument("--batch", type=int, default=4, help="samples per replica and step")
    return parser.parse_args()


if __name__ == "__main__":
    main()
