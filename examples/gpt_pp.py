"""Train a GPT with pipeline parallelism: each rank holds some of the layers, micro-batches flow through the ranks.

    torchrun --standalone --nproc-per-node 4 examples/gpt_pp.py --schedule 1f1b

gpipe: all forwards, then all backwards. 1f1b: backward as soon as possible, so fewer activations are live.
interleaved: each rank holds several smaller stages, so less time is lost while the pipeline fills and drains.
"""

import argparse
from functools import partial

import torch
from gpt_model import GPT, GPTConfig, add_model_arguments, config_from, cross_entropy, materialize, synthetic_batch
from job import Job, require_divides, start
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    job = start()
    torch.manual_seed(args.seed)
    config = config_from(args)
    require_divides(args.micro_batch, args.batch, names=("micro_batch", "batch"))
    stages = make_stages(config, args, job)
    params = [param for stage in stages for param in stage.submod.parameters()]
    optimizer = torch.optim.AdamW(params, lr=args.lr, weight_decay=0.1, fused=args.fused or None)
    schedule = SCHEDULES[args.schedule](
        stages if args.schedule == "interleaved" else stages[0],
        n_microbatches=args.batch // args.micro_batch,
        loss_fn=cross_entropy,
    )

    has_first, has_last = stages[0].is_first, stages[-1].is_last
    for step in range(1, args.steps + 1):
        tokens, targets = synthetic_batch(config, first=(step - 1) * args.batch, count=args.batch)
        inputs = (tokens.to(job.device, non_blocking=True),) if has_first else ()
        losses: list[Tensor] = []
        schedule.step(
            *inputs,
            target=targets.to(job.device, non_blocking=True) if has_last else None,
            losses=losses if has_last else None,
            return_outputs=False,
        )
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if has_last:
            job.print_loss(step, torch.stack(losses).mean().item(), on_rank=job.world_size - 1)
    job.finish()


def make_stages(config: GPTConfig, args: argparse.Namespace, job: Job) -> list[PipelineStage]:
    """Build this rank's stages and no others: no rank ever holds the whole model."""
    num_stages = job.world_size * (args.virtual_stages if args.schedule == "interleaved" else 1)
    require_divides(num_stages, config.num_layers, names=("stages", "num_layers"))
    num_layers = config.num_layers // num_stages
    # The shapes at stage borders are known, so pipelining need not run the model to find them.
    dtype = getattr(torch, args.dtype)
    describe = partial(torch.empty, args.micro_batch, config.seq_len, device="meta")
    tokens = describe(dtype=torch.int64)
    activations = describe(config.hidden_size, dtype=dtype, requires_grad=True)
    logits = describe(config.vocab_size, dtype=dtype, requires_grad=True)

    stages = []
    for index in range(job.rank, num_stages, job.world_size):
        with torch.device("meta"):
            module = GPT(config, layers=range(index * num_layers, (index + 1) * num_layers)).to(dtype)
        materialize(module, config, device=job.device, seed=args.seed)
        is_last = index == num_stages - 1
        stage = PipelineStage(
            module,
            index,
            num_stages,
            job.device,
            input_args=tokens if index == 0 else activations,
            output_args=logits if is_last else activations,
        )
        stages.append(stage)
    return stages


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="GPT with torch.distributed.pipelining")
    add_model_arguments(parser)
    parser.add_argument("--batch", type=int, default=8, help="samples per step")
    parser.add_argument("--micro-batch", type=int, default=1, help="samples per micro-batch")
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--virtual-stages", type=int, default=2, help="stages per rank, for --schedule interleaved")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="float32", help="parameters and compute")
    parser.add_argument("--fused", action="store_true", help="fused AdamW kernel")
    return parser.parse_args()


if __name__ == "__main__":
    main()
