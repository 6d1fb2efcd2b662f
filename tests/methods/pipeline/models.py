"""Small models of the kinds that are cut in practice, each with its inputs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["FAMILIES", "Dense", "Gpt", "LateSize", "Residual", "dense", "gpt", "inputs_of", "residual", "vgg"]


def vgg() -> nn.Module:
    """Return convolutions with in-place activations, then linear layers."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(48, 16),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(16, 5),
    )


class _Residual(nn.Module):
    def __init__(self, taken: int, given: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(taken, given, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(given)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(given, given, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(given)
        self.downsample = None if taken == given else nn.Conv2d(taken, given, 1)

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.blocks = nn.Sequential(_Residual(6, 6), _Residual(6, 8), _Residual(8, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = self.blocks(x).mean(dim=(2, 3))
        return self.head(x)


class _DenseBlock(nn.ModuleDict):
    def forward(self, first):
        features = [first]
        for layer in self.values():
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


class Dense(nn.Module):
    """Every layer of a block reads all those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.block = _DenseBlock({f"layer{k}": self._layer(4 + 3 * k) for k in range(4)})
        self.head = nn.Linear(16, 5)

    @staticmethod
    def _layer(taken: int) -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(taken), nn.ReLU(), nn.Conv2d(taken, 3, 3, padding=1))

    def forward(self, x):
        x = self.block(self.stem(x))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(F.relu(x), 1), 1))


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.size()
        q, k, v = (each.view(batch, length, 2, width // 2).transpose(1, 2) for each in self.qkv(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)
        return self.projection(y.transpose(1, 2).contiguous().view(batch, length, width))


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = _Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    """Its embedding and its head share one weight."""

    def __init__(self, num_blocks: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 8)
        self.positions = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(_Block(8) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 32, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets=None):
        _, length = tokens.size()
        assert length <= self.positions.num_embeddings, "too long"
        x = self.tokens(tokens) + self.positions(torch.arange(0, length, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class LateSize(nn.Module):
    """The last layer reads the size of the first one's input and output."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.rate = 0.5

    def forward(self, x):
        wide = self.one(x)
        y = F.dropout(self.two(torch.sin(wide)), self.rate, self.training)
        return self.three(y).view(x.size(0), wide.shape[1] // 3, -1)[:, : wide.size(-1)]


def residual() -> nn.Module:
    return Residual()


def dense() -> nn.Module:
    return Dense()


def gpt() -> nn.Module:
    return Gpt()


FAMILIES: dict[str, Callable[[], nn.Module]] = {"vgg": vgg, "residual": residual, "dense": dense, "gpt": gpt}


def inputs_of(family: str, batch: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    if family == "gpt":
        return torch.randint(32, (batch, 6), generator=generator)
    return torch.randn(batch, 3, 8, 8, generator=generator)
