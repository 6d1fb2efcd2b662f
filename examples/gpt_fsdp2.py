"""Train a GPT with FSDP2: parameters, gradients and optimizer states are sharded over all ranks (ZeRO-3).

    torchrun --standalone --nproc-per-node 2 examples/gpt_fsdp2.py --param-dtype bfloat16

`fully_shard` makes each block a unit: its parameters are gathered just before they are needed and dropped right
after, and its gradients are reduce-scattered in backward. With `--reshard false` parameters stay until backward
has used them (ZeRO-2).
"""

import argparse

import torch
import torch.distributed as dist
from gpt_model import GPT, add_model_arguments, config_from, cross_entropy, materialize, synthetic_batch
from job import start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    job = start()
    torch.manual_seed(args.seed)
    config = config_from(args)
    mesh = init_device_mesh(job.device.type, (job.world_size,), mesh_dim_names=("dp",))
    policy = MixedPrecisionPolicy(
        param_dtype=getattr(torch, args.param_dtype),  # type to gather and compute in
        reduce_dtype=getattr(torch, args.reduce_dtype),  # type to sum gradients in
    )

    # Shard first, on the meta device; then allocate only the shards.
    with torch.device("meta"):
        model = GPT(config)
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=args.reshard)
    # Embedding and head stay gathered after forward, because backward begins with them.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    materialize(model, config, device=job.device, seed=args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1, fused=args.fused or None)

    per_step = args.micro_batch * args.accumulate
    for step in range(1, args.steps + 1):
        first = ((step - 1) * job.world_size + job.rank) * per_step
        tokens, targets = synthetic_batch(config, first=first, count=per_step)
        step_loss = torch.zeros((), device=job.device)
        for i in range(args.accumulate):
            micro = slice(i * args.micro_batch, (i + 1) * args.micro_batch)
            x = tokens[micro].to(job.device, non_blocking=True)
            y = targets[micro].to(job.device, non_blocking=True)
            model.set_requires_gradient_sync(i == args.accumulate - 1)
            loss = cross_entropy(model(x), y) / args.accumulate
            loss.backward()
            step_loss += loss.detach()
        if args.clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        dist.all_reduce(step_loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        job.print_loss(step, step_loss.item() / job.world_size)
    job.finish()


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="GPT with FSDP2 (fully_shard)")
    add_model_arguments(parser)
    parser.add_argument("--micro-batch", type=int, default=2, help="samples per rank in one forward")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--param-dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--reduce-dtype", choices=["bfloat16", "float32"], default="float32")
    parser.add_argument("--reshard", type=lambda text: text == "true", default=True, help="true: ZeRO-3, false: ZeRO-2")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient, 0: no clipping")
    parser.add_argument("--fused", action="store_true", help="fused AdamW kernel")
    return parser.parse_args()


if __name__ == "__main__":
    main()
