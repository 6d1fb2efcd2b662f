"""Train a model in stages on different ranks, and draw which rank did what and when.

    torchrun --standalone --nproc-per-node 3 examples/pipeline.py
    torchrun --standalone --nproc-per-node 4 examples/pipeline.py --replicas 2,1,1 --picture schedule.svg
    torchrun --standalone --nproc-per-node 2 examples/pipeline.py --schedule interleaved --stages 4
    torchrun --standalone --nproc-per-node 3 examples/pipeline.py --checkpoints /tmp/run1

If a rank is killed, the others name it; start again with the same --checkpoints to continue from the last one.
"""

import argparse
import os
from itertools import pairwise

import torch
from job import start
from torch import Tensor, nn

from sandtable.methods.data import ReplicaCheckpoints
from sandtable.methods.pipeline import Flush, GPipe, Interleaved, PipeDream, PipeDream2BW, Pipeline

SCHEDULES = {
    "pipedream": PipeDream(),
    "vertical-sync": PipeDream(vertical_sync=True),
    "2bw": PipeDream2BW(4),
    "gpipe": GPipe(4),
    "flush": Flush(4),
    "interleaved": Interleaved(4),
}


def main() -> None:
    """Run on every rank."""
    options = parse()
    job = start()
    replicas = [int(count) for count in options.replicas.split(",")] if options.replicas else None
    num_stages = options.stages or (len(replicas) if replicas else job.world_size)
    pipeline = Pipeline(
        [stage.to(job.device) for stage in make_stages(num_stages)],
        lambda parameters: torch.optim.Adam(parameters, lr=0.001),
        loss=nn.CrossEntropyLoss(),
        schedule=SCHEDULES[options.schedule],
        replicas=replicas,
        recompute=options.recompute,
        timeout_s=options.timeout,
    )
    say(f"{pipeline.layout.name(pipeline.rank)}: process {os.getpid()}")
    first, checkpoints = 0, None
    if options.checkpoints:
        checkpoints = ReplicaCheckpoints(options.checkpoints, pipeline=pipeline)
        first = checkpoints.load()
    loss = None
    for step in range(first, options.steps):
        inputs, targets = batch(step)
        loss = pipeline.step(inputs, targets)
        if checkpoints is not None and (step + 1) % options.every == 0:
            checkpoints.save(step + 1)
    pipeline.synchronize()
    inputs, targets = batch(10**6, size=2000)
    outputs = pipeline.predict(inputs)
    if outputs is not None:
        accuracy = (outputs.argmax(dim=1).cpu() == targets).float().mean().item()
        say(f"accuracy {accuracy:.3f} after {options.steps} steps" + (f", loss {loss:.3f}" if loss is not None else ""))
    traffic = pipeline.traffic
    say(
        f"{pipeline.layout.name(pipeline.rank)}: {traffic.sent_bytes} bytes sent in {traffic.messages} messages, "
        f"{pipeline.most_versions_held} versions of the weights at most"
    )
    if options.picture:
        numbers = range(12)
        save = pipeline.record.save_html if options.picture.endswith(".html") else pipeline.record.save_svg
        save(options.picture, minibatches=numbers)
    pipeline.close()
    job.finish()


def make_stages(num_stages: int) -> list[nn.Module]:
    """Deal out eight layers as evenly as possible."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Sequential(nn.Linear(20, 128), nn.ReLU())]
    layers += [nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU()) for _ in range(6)]
    layers += [nn.Linear(128, 5)]
    bounds = [round(index * len(layers) / num_stages) for index in range(num_stages + 1)]
    return [nn.Sequential(*layers[start:end]) for start, end in pairwise(bounds)]


def say(line: str) -> None:
    print(line + "\n", end="", flush=True)


def batch(seed: int, size: int = 64) -> tuple[Tensor, Tensor]:
    """Return made-up data: the class is the largest of five fixed random projections."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 20, generator=generator)
    projection = torch.randn(20, 5, generator=torch.Generator().manual_seed(4711))
    return inputs, (inputs @ projection).argmax(dim=1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", choices=SCHEDULES, default="pipedream")
    parser.add_argument("--stages", type=int, help="number of stages (default: one per rank)")
    parser.add_argument("--replicas", help="ranks that hold each stage, such as 2,1,1")
    parser.add_argument("--recompute", action="store_true", help="drop activations and recompute them in backward")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoints", help="directory in which all ranks keep their state")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--picture", help="where to write the schedule of the first minibatches: .svg or .html")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds after which a silent peer is an error")
    return parser.parse_args()


if __name__ == "__main__":
    main()
