"""Train a GPT with FullyShardedDataParallel, the older FSDP.

    torchrun --standalone --nproc-per-node 2 examples/gpt_fsdp1.py --strategy full

Each unit (a block, or the rest of the model) has its parameters in one flat tensor, sharded over all ranks.
"""

import argparse

import torch
import torch.distributed as dist
from gpt_model import GPT, Block, add_model_arguments, config_from, cross_entropy, init_parameter, synthetic_batch
from job import start
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

STRATEGIES = {
    "full": ShardingStrategy.FULL_SHARD,  # ZeRO-3
    "grad": ShardingStrategy.SHARD_GRAD_OP,  # ZeRO-2
    "none": ShardingStrategy.NO_SHARD,  # as DDP
}


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    job = start()
    torch.manual_seed(args.seed)
    config = config_from(args)
    with torch.device("meta"):
        model = GPT(config)
    names = {module: name for name, module in model.named_modules()}

    def materialize_module(module: nn.Module) -> None:
        # FSDP calls this for each module of a unit, then shards the unit: only one unit at a time is whole in memory.
        module.to_empty(device=job.device, recurse=False)
        for name, param in module.named_parameters(recurse=False):
            init_parameter(f"{names[module]}.{name}", param, config, seed=args.seed)

    dtype = getattr(torch, args.param_dtype)
    fsdp = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        sharding_strategy=STRATEGIES[args.strategy],
        mixed_precision=MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=dtype),
        param_init_fn=materialize_module,
        device_id=job.device,
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(fsdp.parameters(), lr=args.lr, weight_decay=0.1, fused=args.fused or None)

    for step in range(1, args.steps + 1):
        first = ((step - 1) * job.world_size + job.rank) * args.micro_batch
        tokens, targets = synthetic_batch(config, first=first, count=args.micro_batch)
        x, y = tokens.to(job.device, non_blocking=True), targets.to(job.device, non_blocking=True)
        loss = cross_entropy(fsdp(x), y)
        loss.backward()
        if args.clip > 0:
            fsdp.clip_grad_norm_(args.clip)
        step_loss = loss.detach().clone()
        dist.all_reduce(step_loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        job.print_loss(step, step_loss.item() / job.world_size)
    job.finish()


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="GPT with FSDP1 (FullyShardedDataParallel)")
    add_model_arguments(parser)
    parser.add_argument("--micro-batch", type=int, default=2, help="samples per rank and step")
    parser.add_argument("--param-dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--strategy", choices=STRATEGIES, default="full", help="what is sharded")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient, 0: no clipping")
    parser.add_argument("--fused", action="store_true", help="fused AdamW kernel")
    return parser.parse_args()


if __name__ == "__main__":
    main()
