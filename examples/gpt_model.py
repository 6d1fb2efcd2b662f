"""A GPT in plain PyTorch, or any run of its layers, shared by the gpt_*.py examples.

Pre-LN, fused qkv, causal attention through `scaled_dot_product_attention`, GELU, learned positions. Sizes follow
Narayanan et al. 2021 (arXiv:2104.04473, Table 1), Korthikanti et al. 2022 (22b) and GPT-2/GPT-3 below 1.7b; the
vocabulary is 51200.

Build on the meta device, then `materialize`: no host ever holds the whole model. The initial values of a weight
depend only on its name and the seed, not on how the model is split, so tensor- and pipeline-parallel runs start from
the same model.
"""

import argparse
import math
import zlib
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

VOCAB_BLOCK = 128  # rows of the vocabulary that are drawn together; tp must divide vocab_size / 128


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """The shape of the model."""

    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int = 51200
    seq_len: int = 2048
    tied_head: bool = False  # the head uses the token embedding's weight
    recompute: bool = False  # keep only each block's input, run its forward again in backward

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads


SIZES = {
    "tiny": GPTConfig(num_layers=4, hidden_size=64, num_heads=4, vocab_size=512, seq_len=32),
    "2m": GPTConfig(num_layers=4, hidden_size=192, num_heads=6, vocab_size=1024, seq_len=128),
    "124m": GPTConfig(num_layers=12, hidden_size=768, num_heads=12, seq_len=1024),
    "350m": GPTConfig(num_layers=24, hidden_size=1024, num_heads=16),
    "760m": GPTConfig(num_layers=24, hidden_size=1536, num_heads=16),
    "1.3b": GPTConfig(num_layers=24, hidden_size=2048, num_heads=32),
    "1.7b": GPTConfig(num_layers=24, hidden_size=2304, num_heads=24),
    "2.7b": GPTConfig(num_layers=32, hidden_size=2560, num_heads=32),
    "3.6b": GPTConfig(num_layers=30, hidden_size=3072, num_heads=32),
    "6.7b": GPTConfig(num_layers=32, hidden_size=4096, num_heads=32),
    "7.5b": GPTConfig(num_layers=36, hidden_size=4096, num_heads=32),
    "13b": GPTConfig(num_layers=40, hidden_size=5120, num_heads=40),
    "18b": GPTConfig(num_layers=40, hidden_size=6144, num_heads=48),
    "22b": GPTConfig(num_layers=48, hidden_size=6144, num_heads=64),
    "39b": GPTConfig(num_layers=48, hidden_size=8192, num_heads=64),
    "76b": GPTConfig(num_layers=60, hidden_size=10240, num_heads=80),
    "145b": GPTConfig(num_layers=80, hidden_size=12288, num_heads=96),
    "175b": GPTConfig(num_layers=96, hidden_size=12288, num_heads=96),
    "310b": GPTConfig(num_layers=96, hidden_size=16384, num_heads=128),
    "530b": GPTConfig(num_layers=105, hidden_size=20480, num_heads=128),
    "1t": GPTConfig(num_layers=128, hidden_size=25600, num_heads=160),
}


class GPT(nn.Module):
    """Layers `layers` of a GPT, with the embedding if they are the first and the head if they are the last."""

    def __init__(self, config: GPTConfig, *, layers: range | None = None) -> None:
        super().__init__()
        layers = range(config.num_layers) if layers is None else layers
        self.config = config
        self.is_first = layers.start == 0
        self.is_last = layers.stop == config.num_layers
        if self.is_first:
            self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
            self.wpe = Positions(config)
        # Layers are named by their number in the whole model, so a slice's weights keep their names.
        self.blocks = nn.ModuleDict({str(layer): Block(config) for layer in layers})
        if self.is_last:
            self.ln_f = nn.LayerNorm(config.hidden_size)
            if not config.tied_head:
                self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (or the previous slice's activations) to logits (or this slice's activations)."""
        if self.is_first:
            x = self.wpe(self.wte(x))
        for block in self.blocks.values():
            x = (
                checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
                if self.config.recompute
                else block(x)
            )
        if self.is_last:
            x = self.ln_f(x)
            x = F.linear(x, self.wte.weight) if self.config.tied_head else self.head(x)
        return x


class Positions(nn.Module):
    """Add a learned vector for each position of the sequence."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.seq_len, config.hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        """Add the positions' embeddings to the tokens' [batch, seq, hidden]."""
        return x + self.weight


class Block(nn.Module):
    """One transformer layer: attention and MLP, each after a LayerNorm and added to the residual stream.

    The rows of `qkv` are grouped by head (q, k, v of head 0, then of head 1, ...), so a contiguous share of the rows is
    a share of the heads. The weight's size gives the number of heads: all of them, or a tensor-parallel rank's
    share.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.head_size = config.head_size
        self.ln1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)
        self.ln2 = nn.LayerNorm(hidden)
        self.fc1 = nn.Linear(hidden, 4 * hidden)
        self.fc2 = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, seq, hidden] to the same shape."""
        x = x + self.proj(self.attend(self.qkv(self.ln1(x))))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x)), approximate="tanh"))

    def attend(self, qkv: Tensor) -> Tensor:
        """Apply causal self-attention, from [batch, seq, 3 x width] to [batch, seq, width]."""
        batch, seq, width = qkv.shape
        parts = qkv.view(batch, seq, -1, 3 * self.head_size).split(self.head_size, dim=-1)
        q, k, v = (part.transpose(1, 2) for part in parts)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).reshape(batch, seq, width // 3)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss over all tokens, computed in fp32."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@torch.no_grad()
def materialize(model: nn.Module, config: GPTConfig, *, device: torch.device, seed: int) -> None:
    """Give a model built on the meta device its memory on `device` and its initial values.

    For a DTensor (FSDP2, tensor parallel) every rank draws the whole weight, one at a time, and keeps its own shard.
    """
    model.to_empty(device=device)
    for name, param in model.named_parameters():
        if isinstance(param, DTensor):
            whole = torch.empty(param.shape, device=device, dtype=param.dtype)
            init_parameter(name, whole, config, seed=seed)
            shard = distribute_tensor(whole, param.device_mesh, param.placements, src_data_rank=None)
            param.to_local().copy_(shard.to_local())
        else:
            init_parameter(name, param, config, seed=seed)


@torch.no_grad()
def init_parameter(
    name: str, param: Tensor, config: GPTConfig, *, seed: int, shard: int = 0, num_shards: int = 1
) -> None:
    """Set `param`, or shard `shard` of `num_shards` of it along its tensor-parallel dim, to its initial values.

    A weight is drawn in pieces, one for each attention head (or 128 rows of the vocabulary), each from its own seed:
    a rank draws the pieces it holds and gets the values that one process would get. GPT-2's scheme: normal(0, 0.02),
    divided by sqrt(2 layers) where a block adds to the residual stream.
    """
    sharded_dim = 1 if name.endswith(("proj.weight", "fc2.weight")) else 0
    module_name, kind = name.split(".")[-2:]
    if kind.endswith("bias"):
        param.zero_()
    elif module_name.startswith("ln"):
        param.fill_(1.0)
    else:
        std = 0.02 / math.sqrt(2 * config.num_layers) if module_name in ("proj", "fc2") else 0.02
        num_pieces = {"wpe": 1, "wte": config.vocab_size // VOCAB_BLOCK, "head": config.vocab_size // VOCAB_BLOCK}.get(
            module_name, config.num_heads
        )
        if module_name == "wpe":  # never split
            shard, num_shards = 0, 1
        num_local = num_pieces // num_shards
        for i, piece in enumerate(param.chunk(num_local, dim=sharded_dim)):
            torch.manual_seed(zlib.crc32(f"{seed}/{name}/{shard * num_local + i}".encode()))
            piece.copy_(torch.empty(piece.shape, device=piece.device).normal_(0.0, std))


def synthetic_batch(config: GPTConfig, *, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Return samples `first` .. `first + count` of an endless text, as (tokens, targets): each counts up by 1, 2 or 3.

    Sample n is the same on every rank, so the data of a step do not depend on the split. Only an eighth of the
    vocabulary appears, so that there is something to learn from the first step on.
    """
    sample = torch.arange(first, first + count).unsqueeze(1)
    text = (7 * sample + (1 + sample % 3) * torch.arange(config.seq_len + 1)) % (config.vocab_size // 8)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that every GPT example takes."""
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--seq-len", type=int, help="tokens in a sample (default: the size's own)")
    parser.add_argument("--recompute", choices=["none", "full"], default="none", help="activation checkpointing")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)


def config_from(args: argparse.Namespace) -> GPTConfig:
    """Return the model that the flags select."""
    config = SIZES[args.size]
    seq_len = args.seq_len or config.seq_len
    return replace(config, seq_len=seq_len, recompute=args.recompute == "full")
