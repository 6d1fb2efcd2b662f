"""Train an MPT with fully sharded data parallelism, set up as MosaicML's published runs were.

    torchrun --standalone --nproc-per-node 2 validation/scripts/mpt_fsdp.py --checkpoint --num-micro-batches 2

A GPT without biases: learned positions, LayerNorm in low precision, exact GELU, head tied to the embedding (MosaicML
2023, llm-foundry). What decides time and memory follows Composer 0.17 and llm-foundry as they were at the end of 2023:
  - One sharded unit a block and one for the rest. FSDP2 stands for the FSDP1 of the time: it moves the same bytes
    between cards; on the card FSDP2 copies gathered weights apart (4 bytes a weight, in forward and in backward), FSDP1
    joins gradients and divides them (8 bytes a weight, in backward), which is the same in all.
  - Gradients are reduced after every micro-batch (Composer has no `no_sync` for FSDP), in fp32 ("DEFAULT") or bf16
    ("PURE"); masters and optimizer states are fp32 in both.
  - The loss is one fused kernel on bf16 logits; two training metrics work out a cross entropy each, in fp32, on every
    micro-batch.
  - Attention is FlashAttention of the first generation (the flash-attn 1.0.9 that was installed by default). Torch's
    memory-efficient kernels, of the same age, stand for it; torch's flash kernels are of the second.
  - DecoupledAdamW loops over parameters and reads the step number of each from the card.
"""

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from decoupled_adamw import DecoupledAdamW
from fused_cross_entropy import fused_cross_entropy
from process import Process, fill_shards, start, synthetic_text
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint


class MPT(nn.Module):
    """Tokens to logits."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.wte = nn.Embedding(args.vocab, args.hidden)
        self.wpe = nn.Embedding(args.seq_len, args.hidden)
        self.blocks = nn.ModuleList(
            Block(args.hidden, args.heads, recompute=args.checkpoint) for _ in range(args.layers)
        )
        self.norm = nn.LayerNorm(args.hidden, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, seq] to [batch, seq, vocabulary]."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.wte.weight)


class Block(nn.Module):
    """Attention and MLP, each after a LayerNorm and added to the residual stream.

    With `recompute` only the block's input is kept. That is inside the block, so that FSDP gathers the weights once for
    the second forward and the backward.
    """

    def __init__(self, hidden: int, num_heads: int, *, recompute: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.recompute = recompute
        self.norm1 = nn.LayerNorm(hidden, bias=False)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.proj = nn.Linear(hidden, hidden, bias=False)
        self.norm2 = nn.LayerNorm(hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same."""
        if self.recompute:
            result: Tensor = checkpoint(self.compute, x, use_reentrant=False, preserve_rng_state=False)
            return result
        return self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        """The block itself."""
        x = x + self.proj(self.attend(self.qkv(self.norm1(x))))
        result: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return result

    def attend(self, qkv: Tensor) -> Tensor:
        """Causal attention from [batch, seq, 3 x hidden] to [batch, seq, hidden]."""
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def shard(model: MPT, *, device: torch.device, param_dtype: torch.dtype, reduce_dtype: torch.dtype) -> None:
    """Make each block a unit, and what is left another, sharded over all ranks."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp",))
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def train_batch(model: nn.Module, process: Process, args: argparse.Namespace, *, step: int) -> Tensor:
    """Forward and backward of all micro-batches of a step; returns this rank's mean loss."""
    per_rank = args.micro_batch * args.num_micro_batches
    step_loss = torch.zeros((), device=process.device)
    for micro in range(args.num_micro_batches):
        first = ((step - 1) * process.world_size + process.rank) * per_rank + micro * args.micro_batch
        tokens, targets = (
            part.to(process.device, non_blocking=True)
            for part in synthetic_text(first=first, count=args.micro_batch, seq_len=args.seq_len, vocab_size=args.vocab)
        )
        logits = model(tokens)
        loss = fused_cross_entropy(logits.flatten(0, 1), targets.flatten()) / args.num_micro_batches
        loss.backward()
        step_loss += loss.detach()
        measure(logits.detach(), targets)
    return step_loss


@torch.no_grad()
def measure(logits: Tensor, targets: Tensor) -> None:
    """The training metrics, cross entropy and perplexity: each works out the cross entropy for itself."""
    for _ in range(2):
        F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    process = start()
    if process.device.type == "cuda":  # leaves the memory-efficient kernels
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.backends.cuda.enable_flash_sdp(False)
    with torch.device("meta"):
        model = MPT(args)
    dtype = getattr(torch, args.param_dtype)
    shard(
        model,
        device=process.device,
        param_dtype=dtype,
        reduce_dtype=dtype if args.mixed_precision == "PURE" else torch.float32,
    )
    model.to_empty(device=process.device)
    fill_shards(model)
    optimizer = DecoupledAdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    for step in range(1, args.steps + 1):
        step_loss = train_batch(model, process, args, step=step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dist.all_reduce(step_loss)
        process.print_loss(step, step_loss.item() / process.world_size)
    process.finish()


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="MPT with fully sharded data parallelism")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=256)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--micro-batch", type=int, default=2, help="samples a rank in one forward")
    parser.add_argument("--num-micro-batches", type=int, default=1, help="micro-batches a step")
    parser.add_argument("--checkpoint", action="store_true", help="keep only each block's input")
    parser.add_argument("--mixed-precision", choices=["DEFAULT", "PURE"], default="DEFAULT", help="Composer's name")
    parser.add_argument("--param-dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    if args.hidden % args.heads:
        divisors = [n for n in range(1, math.isqrt(args.hidden) + 1) if args.hidden % n == 0]
        parser.error(f"heads ({args.heads}) must divide hidden ({args.hidden}); try {', '.join(map(str, divisors))}")
    return args


if __name__ == "__main__":
    main()
