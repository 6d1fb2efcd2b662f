"""Models to split: an MLP, an attention block and a small GPT, with training in one process to compare with."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sandtable.methods.tensor import ColumnSplit, TensorParallel, TensorPlan

__all__ = ["GPT", "GPT_PLAN", "MLP", "Attention", "Block", "Outcome", "gather", "tokens_of", "train_alone"]

HIDDEN, HEADS = 16, 4
GPT_PLAN = TensorPlan(
    {
        "words": "vocabulary",
        "head": "vocabulary",
        "attention": "heads",
        "attention.qkv": ColumnSplit(parts=3),
        "attention.out": "row",
        "mlp.up": "column",
        "mlp.down": "row",
    },
    sequence=("blocks.*", "norm"),
)


class MLP(nn.Module):
    def __init__(self, *, width: int = 4 * HIDDEN) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, width), nn.Linear(width, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(F.gelu(self.up(x)))
        return output


class Attention(nn.Module):
    """Causal; q, k and v are one after the other in `qkv`."""

    def __init__(self, *, num_heads: int = HEADS, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads, self.head_size, self.dropout = num_heads, HIDDEN // num_heads, dropout
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.head_norm = nn.LayerNorm(self.head_size)  # whole on every rank, but sees this rank's heads only

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_size))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(self.head_norm(q), k, v, is_causal=True, dropout_p=dropout)
        output: Tensor = self.out(attended.transpose(1, 2).flatten(-2))
        return output


class Block(nn.Module):
    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.attention, self.mlp = Attention(dropout=dropout), MLP()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        output: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return output


class GPT(nn.Module):
    """Head and embedding are one matrix."""

    def __init__(self, *, num_layers: int = 2, vocabulary: int = 32, length: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, HIDDEN), nn.Embedding(length, HIDDEN)
        self.blocks = nn.ModuleList(Block(dropout=dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.words(tokens) + self.positions(torch.arange(tokens.size(1)))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Losses of all steps, and unsplit gradients and weights of the last, by name."""

    losses: list[float]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    notes: dict[str, Any] = field(default_factory=dict)

    def check_equal(self, other: "Outcome", *, tolerance: float = 1e-9) -> None:
        torch.testing.assert_close(torch.tensor(self.losses), torch.tensor(other.losses), rtol=0, atol=tolerance)
        for mine, theirs in ((self.gradients, other.gradients), (self.weights, other.weights)):
            assert mine.keys() == theirs.keys()
            for name, tensor in mine.items():
                torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=tolerance, msg=f"{name} differs")


def tokens_of(step: int, *, vocabulary: int = 32, length: int = 8, batch: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(50 + step)
    tokens = torch.randint(vocabulary, (batch, length + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def train_alone(model: nn.Module, *, num_steps: int = 3) -> Outcome:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(num_steps):
        tokens, targets = tokens_of(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return gather(model, None, losses)


def gather(model: nn.Module, parallel: TensorParallel | None, losses: list[float], **notes: Any) -> Outcome:
    def whole(name: str, tensor: Tensor) -> Tensor:
        return tensor.detach() if parallel is None else parallel.full_tensor(name, tensor.detach())

    named = dict(model.named_parameters())
    gradients = {name: whole(name, each.grad) for name, each in named.items() if each.grad is not None}
    weights = {name: whole(name, each) for name, each in named.items()}
    return Outcome(losses=losses, gradients=gradients, weights=weights, notes=notes)
