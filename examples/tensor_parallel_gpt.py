"""A plain GPT, every layer split over the ranks of a group, and replicas of that: two wrappers of sandtable.methods.

    torchrun --standalone --nproc-per-node 4 examples/tensor_parallel_gpt.py --tp 2
    torchrun --standalone --nproc-per-node 4 examples/tensor_parallel_gpt.py --tp 4 --sequence-parallel

The model of gpt_model.py is unchanged: the plan names its layers. tensor_parallel.py does the same by hand.
"""

import argparse

import torch
import torch.distributed as dist
from gpt_model import GPT, add_model_arguments, config_from, materialize, synthetic_batch
from job import require_divides, start
from torch.distributed.device_mesh import init_device_mesh

from sandtable.methods.data import DataParallel
from sandtable.methods.tensor import TensorParallel, TensorPlan

# Rows of `qkv` are grouped by head, and a block takes the number of heads from its width: a slice needs no more.
PLAN = TensorPlan(
    {
        "wte": "vocabulary",
        "qkv": "column",
        "proj": "row",
        "fc1": "column",
        "fc2": "row",
        "head": "vocabulary",
    },
    sequence=("blocks.*", "ln_f"),
)


def main() -> None:
    """Run on every rank."""
    args = parse_arguments()
    job = start()
    config = config_from(args)
    tp_size = args.tp or job.world_size
    require_divides(tp_size, job.world_size, names=("tp", "world size"))
    require_divides(tp_size, config.num_heads, names=("tp", "num_heads"))
    mesh = init_device_mesh(job.device.type, (job.world_size // tp_size, tp_size), mesh_dim_names=("dp", "tp"))
    dp = mesh["dp"]

    with torch.device("meta"):
        model = GPT(config)
    materialize(model, config, device=job.device, seed=args.seed)
    split = TensorParallel(model, plan=PLAN, group=mesh["tp"].get_group(), sequence_parallel=args.sequence_parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    replicas = DataParallel(model, optimizer, group=dp.get_group())

    for step in range(1, args.steps + 1):
        # Ranks of one tp group see the same samples; replicas see different ones.
        first = ((step - 1) * dp.size() + dp.get_local_rank()) * args.micro_batch
        tokens, targets = synthetic_batch(config, first=first, count=args.micro_batch)
        loss = split.cross_entropy(model(tokens.to(job.device)), targets.to(job.device))
        loss.backward()
        replicas.step()
        step_loss = loss.detach().clone()
        dist.all_reduce(step_loss, group=dp.get_group())
        job.print_loss(step, step_loss.item() / dp.size())
    replicas.close()
    job.finish()


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="GPT with sandtable's tensor, sequence and data parallelism")
    add_model_arguments(parser)
    parser.add_argument("--tp", type=int, help="ranks that share every layer (default: all)")
    parser.add_argument("--sequence-parallel", action="store_true", help="split the tokens between split layers")
    parser.add_argument("--micro-batch", type=int, default=2, help="samples per replica and step")
    return parser.parse_args()


if __name__ == "__main__":
    main()
