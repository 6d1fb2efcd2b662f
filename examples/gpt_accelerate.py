"""Train a GPT with Hugging Face's Accelerate (pip install accelerate).

    accelerate launch --num_processes 2 --mixed_precision bf16 examples/gpt_accelerate.py

The script does not say how it is spread over GPUs: `accelerate launch`, or its configuration file, does.
"""

import argparse

import torch
from accelerate import Accelerator
from gpt_model import GPT, add_model_arguments, config_from, cross_entropy, materialize, synthetic_batch


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    accelerator = Accelerator()
    config = config_from(args)
    with torch.device("meta"):
        model = GPT(config)
    materialize(model, config, device=accelerator.device, seed=args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)

    for step in range(1, args.steps + 1):
        first = ((step - 1) * accelerator.num_processes + accelerator.process_index) * args.micro_batch
        tokens, targets = synthetic_batch(config, first=first, count=args.micro_batch)
        loss = cross_entropy(model(tokens.to(accelerator.device)), targets.to(accelerator.device))
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step} loss {loss.item():.6f}")
    accelerator.end_training()


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="GPT with Accelerate")
    add_model_arguments(parser)
    parser.add_argument("--micro-batch", type=int, default=2, help="samples per rank")
    return parser.parse_args()


if __name__ == "__main__":
    main()
