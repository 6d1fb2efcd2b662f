"""A convolution net split two ways at once: channels over the ranks of a group, the batch over replicas of that.

    torchrun --standalone --nproc-per-node 4 examples/tensor_parallel_cnn.py --tp 2     # 2 replicas of 2 ranks
    torchrun --standalone --nproc-per-node 4 examples/tensor_parallel_cnn.py --tp 1     # plain data parallelism

The net is a plain nn.Sequential. Its layers are found and split in pairs, the first by output channels, the second by
input channels, so activations are summed once per pair and direction. Each rank holds 1/tp of the weights and their
gradients. The loss is the same whatever the split.
"""

import argparse

import torch
import torch.distributed as dist
from job import require_divides, start
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from sandtable.methods.data import DataParallel
from sandtable.methods.tensor import TensorParallel

CLASSES = 10


def main() -> None:
    """Run on every rank."""
    args = parse_arguments()
    job = start()
    tp_size = args.tp or job.world_size
    require_divides(tp_size, job.world_size, names=("tp", "world size"))
    require_divides(tp_size, args.width, names=("tp", "width"))
    dp_size = job.world_size // tp_size
    require_divides(dp_size, args.batch, names=("replicas", "batch"))
    mesh = init_device_mesh(job.device.type, (dp_size, tp_size), mesh_dim_names=("dp", "tp"))
    dp = mesh["dp"]

    torch.manual_seed(args.seed)
    model = vgg(args.width).to(job.device)
    TensorParallel(model, group=mesh["tp"].get_group())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    replicas = DataParallel(model, optimizer, group=dp.get_group())

    for step in range(1, args.steps + 1):
        images, labels = (share.chunk(dp_size)[dp.get_local_rank()] for share in made_up_batch(step, args.batch))
        loss = F.cross_entropy(model(images.to(job.device)), labels.to(job.device))
        loss.backward()
        replicas.step()
        step_loss = loss.detach().clone()
        dist.all_reduce(step_loss, group=dp.get_group())
        job.print_loss(step, step_loss.item() / dp_size)
    replicas.close()
    job.finish()


def vgg(width: int) -> nn.Sequential:
    """Build four convolutions and three dense layers for 32 x 32 images. GroupNorm does not depend on the batch."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.GroupNorm(width, width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * width, 8 * width),
        nn.ReLU(inplace=True),
        nn.Linear(8 * width, 8 * width),
        nn.ReLU(inplace=True),
        nn.Linear(8 * width, CLASSES),
    )


def made_up_batch(step: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the images and labels of a step, the same on every rank."""
    generator = torch.Generator().manual_seed(step)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return torch.randn(count, 3, 32, 32, generator=generator) + labels.view(-1, 1, 1, 1) / CLASSES, labels


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="A convolution net split by channels and by batch")
    parser.add_argument("--tp", type=int, help="ranks that share every layer (default: all)")
    parser.add_argument("--width", type=int, default=16, help="channels of the first convolution")
    parser.add_argument("--batch", type=int, default=16, help="images per step, all replicas together")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
