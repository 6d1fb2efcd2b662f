"""Train a GPT with DistributedDataParallel, mixed precision and gradient accumulation.

    torchrun --standalone --nproc-per-node 2 examples/gpt_ddp.py --accumulate 4 --amp bfloat16

Every rank holds the whole model. DDP sums gradients over the ranks once per step, in the backward of the last
micro-batch; `no_sync` suppresses it in the others.
"""

import argparse
import contextlib

import torch
import torch.distributed as dist
from gpt_model import GPT, add_model_arguments, config_from, cross_entropy, materialize, synthetic_batch
from job import start
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    job = start()
    torch.manual_seed(args.seed)
    config = config_from(args)
    with torch.device("meta"):
        model = GPT(config)
    materialize(model, config, device=job.device, seed=args.seed)
    on_gpu = job.device.type == "cuda"
    ddp = DistributedDataParallel(
        model, device_ids=[job.device.index] if on_gpu else None, bucket_cap_mb=args.bucket_mb
    )
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.lr, weight_decay=0.1, fused=args.fused or None)

    autocast = torch.autocast(
        job.device.type,
        dtype=torch.float16 if args.amp == "float16" else torch.bfloat16,
        enabled=args.amp != "none",
    )
    # fp16 gradients underflow: the loss is scaled up before backward and the gradients back down before the step.
    scaler = torch.amp.GradScaler(job.device.type, enabled=args.amp == "float16")

    per_step = args.micro_batch * args.accumulate
    for step in range(1, args.steps + 1):
        first = ((step - 1) * job.world_size + job.rank) * per_step
        tokens, targets = synthetic_batch(config, first=first, count=per_step)
        step_loss = torch.zeros((), device=job.device)
        for i in range(args.accumulate):
            micro = slice(i * args.micro_batch, (i + 1) * args.micro_batch)
            x = tokens[micro].to(job.device, non_blocking=True)
            y = targets[micro].to(job.device, non_blocking=True)
            is_last = i == args.accumulate - 1
            with contextlib.nullcontext() if is_last else ddp.no_sync():
                with autocast:
                    loss = cross_entropy(ddp(x), y) / args.accumulate
                scaler.scale(loss).backward()
            step_loss += loss.detach()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), args.clip)
        dist.all_reduce(step_loss)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        job.print_loss(step, step_loss.item() / job.world_size)
    job.finish()


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="GPT with DDP, AMP and gradient accumulation")
    add_model_arguments(parser)
    parser.add_argument("--micro-batch", type=int, default=2, help="samples per rank in one forward")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches per step")
    parser.add_argument("--amp", choices=["none", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient")
    parser.add_argument("--fused", action="store_true", help="fused AdamW kernel")
    parser.add_argument("--bucket-mb", type=float, default=25.0, help="size of DDP's gradient buckets (MiB)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
