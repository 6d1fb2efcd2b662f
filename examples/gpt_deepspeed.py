"""Train a GPT with DeepSpeed's ZeRO (pip install deepspeed).

    deepspeed --num_gpus 2 examples/gpt_deepspeed.py --zero 1

DeepSpeed shards the optimizer's states (1), also the gradients (2), also the parameters (3).
"""

import argparse
import os

import deepspeed
import torch
from gpt_model import GPT, add_model_arguments, config_from, cross_entropy, materialize, synthetic_batch


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    deepspeed.init_distributed()
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    device = torch.device(deepspeed.get_accelerator().device_name(args.local_rank))
    deepspeed.get_accelerator().set_device(args.local_rank)
    config = config_from(args)
    with torch.device("meta"):
        model = GPT(config)
    materialize(model, config, device=device, seed=args.seed)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings(args))

    for step in range(1, args.steps + 1):
        tokens, targets = synthetic_batch(
            config, first=((step - 1) * world_size + rank) * args.micro_batch, count=args.micro_batch
        )
        loss = cross_entropy(engine(tokens.to(device)), targets.to(device))
        engine.backward(loss)
        engine.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def settings(args: argparse.Namespace) -> dict[str, object]:
    """Return DeepSpeed's configuration. torch's Adam needs no compiler for CUDA; bf16 needs no check for overflow."""
    return {
        "train_micro_batch_size_per_gpu": args.micro_batch,
        "zero_optimization": {"stage": args.zero},
        "bf16": {"enabled": True, "check_grad_overflow": False},
        "optimizer": {"type": "AdamW", "params": {"lr": args.lr, "weight_decay": 0.1, "torch_adam": True}},
    }


def parse_arguments() -> argparse.Namespace:
    """Read the command line; DeepSpeed's launcher adds --local_rank, and others set LOCAL_RANK."""
    parser = argparse.ArgumentParser(description="GPT with DeepSpeed")
    add_model_arguments(parser)
    parser.add_argument("--micro-batch", type=int, default=2, help="samples per rank")
    parser.add_argument("--zero", type=int, choices=[0, 1, 2, 3], default=1, help="ZeRO stage")
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", "0")))
    return parser.parse_args()


if __name__ == "__main__":
    main()
