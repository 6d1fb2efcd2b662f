"""Train Bloom with DeepSpeed's ZeRO (pip install deepspeed transformers).

    deepspeed --num_gpus 8 examples/deepspeed_bloom.py --zero 2
    sandtable run --cluster dgx-a100 -- torchrun --nnodes 384 --nproc-per-node 8 examples/deepspeed_bloom.py --zero 2

The model is Hugging Face's Bloom with the sizes of bloom-560m, with random weights; the optimizer is DeepSpeed's own
Adam. DeepSpeed shards the optimizer's states (1), also the gradients (2), also the parameters (3).
"""

import argparse
import os

import deepspeed
import torch
from transformers import BloomConfig, BloomForCausalLM

SIZES = {
    "tiny": {"vocab_size": 512, "hidden_size": 64, "n_layer": 2, "n_head": 4},
    "560m": {"vocab_size": 250_880, "hidden_size": 1024, "n_layer": 24, "n_head": 16},
    "1b1": {"vocab_size": 250_880, "hidden_size": 1536, "n_layer": 24, "n_head": 16},
    "7b1": {"vocab_size": 250_880, "hidden_size": 4096, "n_layer": 30, "n_head": 32},
}


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    deepspeed.init_distributed()
    config = BloomConfig(**SIZES[args.size])
    settings = deepspeed_settings(args)
    with deepspeed.zero.Init(config_dict_or_path=settings, enabled=args.zero == 3):
        model = BloomForCausalLM(config)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    tokens = torch.randint(0, config.vocab_size, (args.micro_batch, args.seq_len), device=engine.device)
    for step in range(1, args.steps + 1):
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        if torch.distributed.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
    torch.distributed.destroy_process_group()


def deepspeed_settings(args: argparse.Namespace) -> dict[str, object]:
    """Return DeepSpeed's configuration."""
    return {
        "train_micro_batch_size_per_gpu": args.micro_batch,
        "zero_optimization": {"stage": args.zero},
        args.dtype: {"enabled": True},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
        "gradient_clipping": 1.0,
    }


def parse_arguments() -> argparse.Namespace:
    """Read the command line; DeepSpeed's launcher adds --local_rank, and others set LOCAL_RANK."""
    parser = argparse.ArgumentParser(description="Bloom with DeepSpeed")
    parser.add_argument("--size", choices=SIZES, default="560m")
    parser.add_argument("--zero", type=int, choices=[0, 1, 2, 3], default=2, help="ZeRO stage (default 2)")
    parser.add_argument("--dtype", choices=["bf16", "fp16"], default="bf16")
    parser.add_argument("--micro-batch", type=int, default=1, help="samples per rank")
    parser.add_argument("--seq-len", type=int, default=1024, help="tokens in a sample")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", "0")))
    return parser.parse_args()


if __name__ == "__main__":
    main()
