"""Train a ResNet with DistributedDataParallel on made-up pictures, loaded as real ones would be.

    torchrun --standalone --nproc-per-node 2 examples/resnet_ddp.py --depth 18 --image-size 32

He et al. 2015 (arXiv:1512.03385): depth 18 and 34 from basic blocks, 50 and 101 from bottlenecks; `--width 64`,
`--image-size 224` and `--classes 1000` give the ImageNet models.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from job import start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

# depth: (blocks in each of the four groups, whether they are bottlenecks)
DEPTHS = {
    10: ((1, 1, 1, 1), False),
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
}


class ResNet(nn.Module):
    """A stem, four groups of residual blocks (each halves the picture and doubles the channels), and a classifier."""

    def __init__(self, *, depth: int, width: int, num_classes: int) -> None:
        super().__init__()
        counts, is_bottleneck = DEPTHS[depth]
        self.stem = nn.Sequential(convolution(3, width, kernel=7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
        blocks: list[nn.Module] = []
        channels = width
        for group, count in enumerate(counts):
            inner = width * 2**group
            outer = inner * 4 if is_bottleneck else inner
            for i in range(count):
                stride = 2 if group > 0 and i == 0 else 1
                blocks.append(ResidualBlock(channels, inner, outer, stride=stride))
                channels = outer
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map pictures [batch, 3, size, size] to scores [batch, classes]."""
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


class ResidualBlock(nn.Module):
    """x + f(x), where f is 3x3, 3x3 or, when outer is wider than inner (a bottleneck), 1x1, 3x3, 1x1."""

    def __init__(self, channels: int, inner: int, outer: int, *, stride: int) -> None:
        super().__init__()
        if outer == inner:
            layers = [
                convolution(channels, inner, kernel=3, stride=stride),
                nn.ReLU(),
                convolution(inner, outer, kernel=3),
            ]
        else:
            layers = [convolution(channels, inner, kernel=1), nn.ReLU()]
            layers += [
                convolution(inner, inner, kernel=3, stride=stride),
                nn.ReLU(),
                convolution(inner, outer, kernel=1),
            ]
        self.body = nn.Sequential(*layers)
        same_shape = stride == 1 and channels == outer
        self.shortcut = nn.Identity() if same_shape else convolution(channels, outer, kernel=1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, channels, size, size] to [batch, outer, size / stride, size / stride]."""
        return F.relu(self.body(x) + self.shortcut(x))


def convolution(channels: int, outer: int, *, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution and its batch norm."""
    return nn.Sequential(
        nn.Conv2d(channels, outer, kernel, stride=stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(outer)
    )


class Pictures(Dataset[tuple[Tensor, int]]):
    """Noise around a pattern that identifies the class, drawn from the picture's number."""

    def __init__(self, *, num_pictures: int, size: int, num_classes: int) -> None:
        self.num_pictures, self.size, self.num_classes = num_pictures, size, num_classes

    def __len__(self) -> int:
        return self.num_pictures

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = index % self.num_classes
        noise = torch.randn(3, self.size, self.size, generator=torch.Generator().manual_seed(index))
        phase = 6.28 * label / self.num_classes
        return noise + torch.sin(torch.arange(self.size) / 2 + phase), label


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    job = start()
    on_gpu = job.device.type == "cuda"
    torch.manual_seed(args.seed)
    memory_format = torch.channels_last if args.channels_last else torch.contiguous_format
    model = ResNet(depth=args.depth, width=args.width, num_classes=args.classes)
    model = model.to(job.device, memory_format=memory_format)
    ddp = DistributedDataParallel(
        model, device_ids=[job.device.index] if on_gpu else None, bucket_cap_mb=args.bucket_mb
    )
    optimizer = torch.optim.SGD(ddp.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)

    num_pictures = args.steps * args.batch * job.world_size
    pictures = Pictures(num_pictures=num_pictures, size=args.image_size, num_classes=args.classes)
    sampler = DistributedSampler(pictures, num_replicas=job.world_size, rank=job.rank, seed=args.seed)
    loader = DataLoader(pictures, args.batch, sampler=sampler, num_workers=args.workers, pin_memory=on_gpu)

    for step, (x, y) in enumerate(loader, start=1):
        x = x.to(job.device, non_blocking=True, memory_format=memory_format)
        y = y.to(job.device, non_blocking=True)
        with torch.autocast(job.device.type, dtype=torch.bfloat16, enabled=args.amp):
            loss = F.cross_entropy(ddp(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        step_loss = loss.detach().clone()
        dist.all_reduce(step_loss)
        optimizer.step()
        job.print_loss(step, step_loss.item() / job.world_size)
    job.finish()


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="ResNet with DDP")
    parser.add_argument("--depth", type=int, choices=DEPTHS, default=10)
    parser.add_argument("--width", type=int, default=8, help="channels after the stem")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8, help="pictures per rank and step")
    parser.add_argument("--workers", type=int, default=0, help="processes that load pictures")
    parser.add_argument("--channels-last", action="store_true", help="NHWC, which tensor cores prefer")
    parser.add_argument("--amp", action="store_true", help="bf16 autocast")
    parser.add_argument("--bucket-mb", type=float, default=25.0, help="size of DDP's gradient buckets (MiB)")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
