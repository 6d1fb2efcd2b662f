"""The small networks of a study: two blocks of convolution and pooling, then two dense layers."""

import torch
from torch import nn

__all__ = ["build_model"]

_WIDTHS = {"small-cnn": (32, 64, 128), "tiny-cnn": (4, 8, 16)}
"""Channels of the two convolutions, and units of the first dense layer."""


def build_model(name: str, *, shape: tuple[int, int, int], num_classes: int, seed: int) -> nn.Module:
    """Build a network for images of `shape` (channels, height, width), with weights drawn from `seed`.

    `small-cnn` on CIFAR-10: 896 + 18,496 + 524,416 + 1,290 = 545,098 parameters, 6.1 million multiplications per image.
    Pooling before ReLU gives the same values as after it, with a quarter of the ReLU's work.
    """
    first, second, hidden = _WIDTHS[name]
    channels, height, width = shape
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(channels, first, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
            nn.Conv2d(first, second, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(second * (height // 4) * (width // 4), hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, num_classes),
        )
