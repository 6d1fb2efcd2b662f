"""Train a GPT with tensor and sequence parallelism, written as DTensor layouts.

    torchrun --standalone --nproc-per-node 4 examples/gpt_tp.py --tp 2

The model is `gpt_model.GPT`, unchanged. A plan states how each layer's weight is split; `parallelize_module` turns the
weights into DTensors and inserts exchanges where layouts meet. Between the linears activations are split along the
sequence, the vocabulary is split in the embedding and the head, and `loss_parallel` keeps the logits split. The
remaining ranks are replicas, which average their gradients at the end of the step.
"""

import argparse

import torch
import torch.distributed as dist
from gpt_model import GPT, add_model_arguments, config_from, cross_entropy, materialize, synthetic_batch
from job import require_divides, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


def make_plan() -> dict[str, ParallelStyle]:
    """Return how each module is split. Shard(1) is the sequence, Shard(-1) the vocabulary or the width."""
    return {
        "wte": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "wpe": SequenceParallel(use_local_output=True),
        "blocks.*.ln1": SequenceParallel(),
        "blocks.*.qkv": ColwiseParallel(input_layouts=Shard(1)),
        "blocks.*.proj": RowwiseParallel(output_layouts=Shard(1)),
        "blocks.*.ln2": SequenceParallel(),
        "blocks.*.fc1": ColwiseParallel(input_layouts=Shard(1)),
        "blocks.*.fc2": RowwiseParallel(output_layouts=Shard(1)),
        "ln_f": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    job = start()
    torch.manual_seed(args.seed)
    config = config_from(args)
    tp_size = args.tp or job.world_size
    require_divides(tp_size, job.world_size, names=("tp", "world size"))
    require_divides(tp_size, config.num_heads, names=("tp", "num_heads"))
    require_divides(tp_size, config.vocab_size, names=("tp", "vocab_size"))
    require_divides(tp_size, config.seq_len, names=("tp", "seq_len"))
    mesh = init_device_mesh(job.device.type, (job.world_size // tp_size, tp_size), mesh_dim_names=("dp", "tp"))
    dp = mesh["dp"]

    with torch.device("meta"):
        model = GPT(config).to(getattr(torch, args.dtype))
    parallelize_module(model, mesh["tp"], make_plan())
    materialize(model, config, device=job.device, seed=args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1, fused=args.fused or None)

    for step in range(1, args.steps + 1):
        # Ranks of one tp group see the same samples; replicas see different ones.
        first = ((step - 1) * dp.size() + dp.get_local_rank()) * args.micro_batch
        tokens, targets = synthetic_batch(config, first=first, count=args.micro_batch)
        x, y = tokens.to(job.device, non_blocking=True), targets.to(job.device, non_blocking=True)
        with loss_parallel():
            loss = cross_entropy(model(x), y)
            loss.backward()
        settle_gradients(model, dp.get_group())
        step_loss = loss.detach().full_tensor()
        dist.all_reduce(step_loss, group=dp.get_group())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        job.print_loss(step, step_loss.item() / dp.size())
    job.finish()


def settle_gradients(model: GPT, group: dist.ProcessGroup) -> None:
    """Bring each gradient into its parameter's layout, then average over the replicas.

    A LayerNorm's weight is whole on every rank, but each rank saw only its share of the sequence: its gradient is a
    partial sum. Otherwise the optimizer would sum it again for every operator that reads it.
    """
    num_replicas = dist.get_world_size(group)
    for param in model.parameters():
        grad = param.grad.redistribute(placements=param.placements)
        if num_replicas > 1:
            local = grad.to_local().div_(num_replicas)
            dist.all_reduce(local, group=group)
        param.grad = grad


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="GPT with DTensor tensor + sequence parallelism")
    add_model_arguments(parser)
    parser.add_argument("--tp", type=int, help="tensor-parallel ranks (default: all)")
    parser.add_argument("--micro-batch", type=int, default=2, help="samples per replica and step")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="float32", help="parameters and compute")
    parser.add_argument("--fused", action="store_true", help="fused AdamW kernel")
    return parser.parse_args()


if __name__ == "__main__":
    main()
