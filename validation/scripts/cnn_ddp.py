"""Train a network for pictures with DistributedDataParallel, fp32, on one batch of made-up pictures.

    torchrun --standalone --nproc-per-node 2 validation/scripts/cnn_ddp.py --network tiny --batch 4

The batch lies on the card from the start ("synthetic data" of the measurements), so input costs nothing. Alone, a
process trains without DDP: that is what speed-ups are counted from. Gradients are averaged by all-reduce in buckets
while backward runs; some of the measured systems used parameter servers, which move the same bytes.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from cnn_models import NETWORKS
from process import start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def synthetic_pictures(*, first: int, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Pictures `first` .. `first + count` and their classes: waves whose direction tells the class."""
    label = torch.arange(first, first + count) % 10
    across = torch.arange(size) / 4
    phase = label.view(-1, 1, 1, 1) * (across.view(1, 1, -1, 1) + across.view(1, 1, 1, -1)) / 10
    return torch.sin(phase + torch.arange(3).view(1, 3, 1, 1)), label


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    process = start()
    torch.manual_seed(args.seed)
    network = NETWORKS[args.network]
    model: nn.Module = network.build().to(process.device)
    if process.world_size > 1:
        ids = [process.device.index] if process.device.type == "cuda" else None
        model = DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    pictures, labels = (
        part.to(process.device)
        for part in synthetic_pictures(first=process.rank * args.batch, count=args.batch, size=network.image_size)
    )
    for step in range(1, args.steps + 1):
        loss = F.cross_entropy(model(pictures), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % args.log_every == 0:
            step_loss = loss.detach().clone()
            dist.all_reduce(step_loss)
            process.print_loss(step, step_loss.item() / process.world_size)
    process.finish()


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="CNNs with DDP")
    parser.add_argument("--network", choices=NETWORKS, default="tiny")
    parser.add_argument("--batch", type=int, default=4, help="pictures a rank and step")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--log-every", type=int, default=1, help="steps between reading losses")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
