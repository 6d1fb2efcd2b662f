"""Train Llama 2 or 3 with FSDP2, set up as torchtitan's published runs were.

    torchrun --standalone --nproc-per-node 2 validation/scripts/llama_fsdp2.py --model tiny --checkpoint op

Touvron et al. 2023 (arXiv:2307.09288) and Grattafiori et al. 2024 (arXiv:2407.21783): RMSNorm, rotary positions,
grouped queries, SwiGLU. What decides time and memory follows the measured runs (torchtitan 9dec370 and 3faaa1a):
one `fully_shard` unit a layer and one for the rest, bf16 gathered and computed with, fp32 masters and reductions,
rotation in fp32 by plain operators, AdamW by foreach, clipping to norm 1, and the allocator's expandable segments. In
spring 2024 norms were one kernel and the loss took bf16 logits (`--fused-norm --low-precision-loss`); at the end of the
year norms were plain operators in fp32 and the loss took fp32 logits.
"""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # torch reads it when it first allocates

import torch
import torch.distributed as dist
import torch.nn.functional as F
from process import fill_shards, start, synthetic_text
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """The shape of the model."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    ffn_size: int
    vocab_size: int
    rope_base: float = 500_000.0
    fused_norm: bool = False


MODELS = {
    "tiny": LlamaConfig(
        num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_size=192, vocab_size=256, rope_base=10_000.0
    ),
    "llama2-13b": LlamaConfig(
        num_layers=40,
        hidden_size=5120,
        num_heads=40,
        num_kv_heads=40,
        ffn_size=13824,
        vocab_size=32000,
        rope_base=10_000.0,
    ),
    "llama2-70b": LlamaConfig(
        num_layers=80,
        hidden_size=8192,
        num_heads=64,
        num_kv_heads=8,
        ffn_size=28672,
        vocab_size=32000,
        rope_base=10_000.0,
    ),
    "llama3-8b": LlamaConfig(
        num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, ffn_size=14336, vocab_size=128256
    ),
    "llama3-70b": LlamaConfig(
        num_layers=80, hidden_size=8192, num_heads=64, num_kv_heads=8, ffn_size=28672, vocab_size=128256
    ),
}


class Llama(nn.Module):
    """Tokens to logits."""

    def __init__(self, config: LlamaConfig, *, checkpointing: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Layer(config, recompute=recompute_of_layer(checkpointing, number=i)) for i in range(config.num_layers)
        )
        self.norm = RMSNorm(config)
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor, rotation: Tensor) -> Tensor:
        """[batch, seq] to [batch, seq, vocabulary]."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, rotation)
        logits: Tensor = self.output(self.norm(x))
        return logits


class Layer(nn.Module):
    """Attention and a gated MLP, each after a norm and added to the residual stream.

    `recompute` runs the layer so that part of its activations, or all, are worked out again in backward. It is inside
    the layer, so that FSDP gathers the weights once for the second forward and the backward.
    """

    def __init__(self, config: LlamaConfig, *, recompute: Callable[..., Tensor] | None) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config)
        self.mlp = GatedMLP(config)
        self.recompute = recompute

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same."""
        return self.compute(x, rotation) if self.recompute is None else self.recompute(self.compute, x, rotation)

    def compute(self, x: Tensor, rotation: Tensor) -> Tensor:
        """The layer itself."""
        x = x + self.attention(self.attention_norm(x), rotation)
        result: Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class Attention(nn.Module):
    """Causal attention in which groups of queries share a key and a value."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_size = config.hidden_size // config.num_heads
        self.group_size = config.num_heads // config.num_kv_heads
        kv_size = config.num_kv_heads * self.head_size
        self.q = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same."""
        q, k, v = (part.unflatten(-1, (-1, self.head_size)) for part in (self.q(x), self.k(x), self.v(x)))
        q, k = rotate(q, rotation), rotate(k, rotation)
        k, v = (self.copy_to_group(part) for part in (k, v))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.out(attended.transpose(1, 2).contiguous().flatten(2))
        return result

    def copy_to_group(self, x: Tensor) -> Tensor:
        """Each key or value [batch, seq, kv_heads, size] once for every query of its group."""
        if self.group_size == 1:
            return x
        return x.unsqueeze(3).expand(-1, -1, -1, self.group_size, -1).flatten(2, 3)


class GatedMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.up = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.down = nn.Linear(config.ffn_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to the same."""
        result: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


class RMSNorm(nn.Module):
    """Root mean square norm: one kernel, or plain operators in fp32."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.fused = config.fused_norm
        self.weight = nn.Parameter(torch.ones(config.hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] to the same."""
        if self.fused:
            return F.rms_norm(x, self.weight.shape, self.weight, eps=1e-5)
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def rotations(config: LlamaConfig, *, seq_len: int, device: torch.device) -> Tensor:
    """The unit complex number by which each pair of a head's elements turns, [seq, head / 2]."""
    head_size = config.hidden_size // config.num_heads
    speed = config.rope_base ** -(torch.arange(0, head_size, 2, device=device) / head_size)
    angle = torch.outer(torch.arange(seq_len, device=device), speed)
    return torch.polar(torch.ones_like(angle), angle)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotary positions: neighbouring elements of [batch, seq, heads, size] are one complex number."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation[None, :, None, :]).flatten(3).type_as(x)


def recompute_of_layer(checkpointing: str, *, number: int) -> Callable[..., Tensor] | None:
    """How layer `number` saves memory: `full` keeps its input, `layer` does so in every second layer, `op` keeps
    every second matrix product and the attention, `none` keeps everything."""
    keep_input: Callable[..., Tensor] = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    if checkpointing == "op":
        return partial(keep_input, context_fn=every_second_product)
    return keep_input if checkpointing == "full" or (checkpointing == "layer" and number % 2 == 1) else None


def every_second_product() -> tuple[object, object]:
    """Contexts for the first forward and the second: what is kept in one is not computed in the other."""
    num_products = {False: 0, True: 0}  # seen so far in the first forward, and in the second

    def policy(context: SelectiveCheckpointContext, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        keep = op in (
            torch.ops.aten._scaled_dot_product_flash_attention.default,
            torch.ops.aten._scaled_dot_product_efficient_attention.default,
        )
        if op is torch.ops.aten.mm.default:
            num_products[context.is_recompute] += 1
            keep = num_products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    contexts: tuple[object, object] = create_selective_checkpoint_contexts(policy)
    return contexts


def loss_of_logits(logits: Tensor, targets: Tensor, *, low_precision: bool) -> Tensor:
    """Cross entropy of [batch, seq, vocabulary], in fp32 or in the type of the logits."""
    flat = logits.flatten(0, 1)
    return F.cross_entropy(flat if low_precision else flat.float(), targets.flatten())


def shard(model: Llama, *, device: torch.device, param_dtype: torch.dtype) -> None:
    """Make each layer a unit, and what is left another, sharded over all ranks."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp",))
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32)
    *earlier, last = model.layers
    for layer in earlier:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    # Backward begins with the last layer and the head, so these stay gathered.
    fully_shard(last, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    process = start()
    if process.device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # flash attention, as at the time
    model_config = MODELS[args.model]
    config = replace(model_config, num_layers=args.layers or model_config.num_layers, fused_norm=args.fused_norm)
    with torch.device("meta"):
        model = Llama(config, checkpointing=args.checkpoint)
    loss_of = partial(loss_of_logits, low_precision=args.low_precision_loss)
    if args.compile:  # a layer at a time, before it is sharded, and the loss
        for number, layer in enumerate(model.layers):
            model.layers[number] = torch.compile(layer, fullgraph=True)
        loss_of = torch.compile(loss_of)
    shard(model, device=process.device, param_dtype=getattr(torch, args.param_dtype))
    model.to_empty(device=process.device)
    fill_shards(model)
    rotation = rotations(config, seq_len=args.seq_len, device=process.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)

    for step in range(1, args.steps + 1):
        first = ((step - 1) * process.world_size + process.rank) * args.local_batch
        tokens, targets = synthetic_text(
            first=first, count=args.local_batch, seq_len=args.seq_len, vocab_size=config.vocab_size
        )
        tokens, targets = tokens.to(process.device), targets.to(process.device)
        optimizer.zero_grad()
        logits = model(tokens, rotation)
        loss = loss_of(logits, targets)
        del logits  # or the bf16 logits stay through backward
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        if step % args.log_every == 0:
            step_loss = loss.detach().clone()
            dist.all_reduce(step_loss)
            process.print_loss(step, step_loss.item() / process.world_size)
    process.finish()


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Llama with FSDP2")
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--local-batch", type=int, default=2, help="samples a rank and step")
    parser.add_argument("--checkpoint", choices=["none", "full", "layer", "op"], default="none")
    parser.add_argument("--fused-norm", action="store_true", help="norms are one kernel")
    parser.add_argument("--low-precision-loss", action="store_true", help="the loss takes the logits as they are")
    parser.add_argument("--compile", action="store_true", help="compile each layer, and the loss")
    parser.add_argument("--param-dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--log-every", type=int, default=1, help="steps between reading losses")
    parser.add_argument("--lr", type=float, default=3e-4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
