"""Networks for pictures, as the data-parallel measurements of 2017 and 2018 used them: plain PyTorch, fp32.

ResNet (He et al. 2015, arXiv:1512.03385, stride in the 3x3 convolution), VGG16 (Simonyan and Zisserman 2014,
arXiv:1409.1556), Inception v3 (Szegedy et al. 2015, arXiv:1512.00567, without the second head) and AlexNet
(Krizhevsky 2014, arXiv:1404.5997).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def resnet(counts: tuple[int, int, int, int], *, num_classes: int = 1000, width: int = 64) -> nn.Module:
    """A stem, four groups of bottlenecks (each halves the picture and doubles the channels), and a classifier."""
    layers: list[nn.Module] = [conv_norm(3, width, 7, stride=2, pad=3), nn.MaxPool2d(3, 2, padding=1)]
    channels = width
    for group, count in enumerate(counts):
        inner = width * 2**group
        for i in range(count):
            layers.append(Bottleneck(channels, inner, stride=2 if group > 0 and i == 0 else 1))
            channels = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


class Bottleneck(nn.Module):
    """x + f(x), where f is 1x1, 3x3, 1x1."""

    def __init__(self, channels: int, inner: int, *, stride: int) -> None:
        super().__init__()
        outer = 4 * inner
        self.body = nn.Sequential(
            conv_norm(channels, inner, 1),
            conv_norm(inner, inner, 3, stride=stride, pad=1),
            conv_norm(inner, outer, 1, active=False),
        )
        same = stride == 1 and channels == outer
        self.shortcut = nn.Identity() if same else conv_norm(channels, outer, 1, stride=stride, active=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, size, size] to [batch, 4 x inner, size / stride, size / stride]."""
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def vgg16(*, num_classes: int = 1000) -> nn.Module:
    """Thirteen 3x3 convolutions in five groups, and three wide layers that hold nine tenths of the weights."""
    layers: list[nn.Module] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), *wide_layers(512 * 7 * 7, num_classes))


def alexnet(*, num_classes: int = 1000) -> nn.Module:
    """Five convolutions and three wide layers."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)]
    layers += [nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)]
    for channels, width in ((192, 384), (384, 384), (384, 256)):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.MaxPool2d(3, 2), nn.Flatten(), *wide_layers(256 * 6 * 6, num_classes))


def wide_layers(features: int, num_classes: int) -> Iterable[nn.Module]:
    """VGG's and AlexNet's classifier."""
    for inputs in (features, 4096):
        yield from (nn.Linear(inputs, 4096), nn.ReLU(inplace=True), nn.Dropout())
    yield nn.Linear(4096, num_classes)


def inception_v3(*, num_classes: int = 1000) -> nn.Module:
    """A stem, then blocks whose branches look at the same picture through windows of different shapes."""
    stem = nn.Sequential(
        conv_norm(3, 32, 3, stride=2),
        conv_norm(32, 32, 3),
        conv_norm(32, 64, 3, pad=1),
        nn.MaxPool2d(3, 2),
        conv_norm(64, 80, 1),
        conv_norm(80, 192, 3),
        nn.MaxPool2d(3, 2),
    )
    blocks: list[nn.Module] = []
    channels = 192
    for pooled in (32, 64, 64):  # 35 x 35
        blocks.append(narrow_windows(channels, pooled))
        channels = 64 + 64 + 96 + pooled
    blocks.append(shrink(channels, ((384, 3),), ((64, 1), (96, 3), (96, 3))))
    for inner in (128, 160, 160, 192):  # 17 x 17
        blocks.append(long_windows(768, inner))
    blocks.append(shrink(768, ((192, 1), (320, 3)), ((192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3))))
    blocks += [forked_windows(1280), forked_windows(2048)]  # 8 x 8
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, num_classes))


class Branches(nn.Module):
    """Every branch sees the input; their outputs are joined along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, ...] to [batch, the branches' channels, ...]."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def narrow_windows(channels: int, pooled: int) -> nn.Module:
    """1x1, 5x5, two 3x3, and an average."""
    return Branches(
        conv_norm(channels, 64, 1),
        nn.Sequential(conv_norm(channels, 48, 1), conv_norm(48, 64, 5, pad=2)),
        nn.Sequential(conv_norm(channels, 64, 1), conv_norm(64, 96, 3, pad=1), conv_norm(96, 96, 3, pad=1)),
        averaged(channels, pooled),
    )


def long_windows(channels: int, inner: int) -> nn.Module:
    """1x1, 7x7 as a row and a column, the same twice, and an average."""
    row, column = (1, 7), (7, 1)
    return Branches(
        conv_norm(channels, 192, 1),
        chain(channels, (inner, 1), (inner, row), (192, column)),
        chain(channels, (inner, 1), (inner, column), (inner, row), (inner, column), (192, row)),
        averaged(channels, 192),
    )


def forked_windows(channels: int) -> nn.Module:
    """1x1, 3x3 as a row beside a column, the same after a 3x3, and an average."""

    def fork(width: int) -> nn.Module:
        return Branches(chain(width, (384, (1, 3))), chain(width, (384, (3, 1))))

    return Branches(
        conv_norm(channels, 320, 1),
        nn.Sequential(conv_norm(channels, 384, 1), fork(384)),
        nn.Sequential(chain(channels, (448, 1), (384, 3)), fork(384)),
        averaged(channels, 192),
    )


def shrink(channels: int, *branches: tuple[tuple[object, ...], ...]) -> nn.Module:
    """Half the size: chains whose last convolution has stride 2, and a maximum."""
    return Branches(*(chain(channels, *branch, last_stride=2) for branch in branches), nn.MaxPool2d(3, 2))


def chain(channels: int, *convolutions: tuple[object, ...], last_stride: int = 1) -> nn.Module:
    """Convolutions one after another, each (width, window) padded to keep the size; a last one of stride 2 is not."""
    layers = []
    for i, (width, window, *_) in enumerate(convolutions):
        stride = last_stride if i == len(convolutions) - 1 else 1
        sides = window if isinstance(window, tuple) else (window, window)
        pad = (0, 0) if stride == 2 else (sides[0] // 2, sides[1] // 2)
        assert isinstance(width, int)
        layers.append(conv_norm(channels, width, sides, stride=stride, pad=pad))
        channels = width
    return nn.Sequential(*layers)


def averaged(channels: int, width: int) -> nn.Module:
    """The mean of 3x3, then 1x1."""
    return nn.Sequential(nn.AvgPool2d(3, 1, padding=1), conv_norm(channels, width, 1))


def conv_norm(
    channels: int,
    width: int,
    window: int | tuple[int, int],
    *,
    stride: int = 1,
    pad: int | tuple[int, int] = 0,
    active: bool = True,
) -> nn.Module:
    """A convolution, its batch norm and, if `active`, a ReLU."""
    layers = [nn.Conv2d(channels, width, window, stride=stride, padding=pad, bias=False), nn.BatchNorm2d(width)]
    return nn.Sequential(*layers, *([nn.ReLU(inplace=True)] if active else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How to build it, and the side of its pictures."""

    build: Callable[[], nn.Module]
    image_size: int


NETWORKS = {
    "alexnet": Network(build=alexnet, image_size=224),
    "inception_v3": Network(build=inception_v3, image_size=299),
    "resnet50": Network(build=lambda: resnet((3, 4, 6, 3)), image_size=224),
    "resnet152": Network(build=lambda: resnet((3, 8, 36, 3)), image_size=224),
    "vgg16": Network(build=vgg16, image_size=224),
    "tiny": Network(build=lambda: resnet((1, 1, 1, 1), num_classes=10, width=4), image_size=32),
}
