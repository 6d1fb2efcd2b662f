"""Train a GPT with tensor, pipeline and data parallelism at once, as Narayanan et al. 2021 (arXiv:2104.04473) do.

    torchrun --standalone --nproc-per-node 4 examples/gpt_3d.py --tp 2 --pp 2

A rank holds 1/pp of the layers and 1/tp of each layer. Neighbours along the tp axis exchange activations several
times per layer and belong in one machine; neighbours along pp exchange them once per micro-batch; neighbours along dp
add their gradients once per step. So the mesh is (pp, dp, tp), with the last axis over adjacent ranks.
"""

import argparse
from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from gpt_model import GPTConfig, add_model_arguments, config_from, init_parameter, synthetic_batch
from job import Job, require_divides, start
from tensor_parallel import ParallelGPT, TensorGroup, VocabParallelCrossEntropy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    job = start()
    torch.manual_seed(args.seed)
    config = config_from(args)
    mesh = make_mesh(job, args)
    pp, dp = mesh["pp"], mesh["dp"]
    tp = TensorGroup(
        group=mesh["tp"].get_group(),
        rank=mesh["tp"].get_local_rank(),
        size=args.tp,
        sequence_parallel=args.sequence_parallel and args.tp > 1,
    )
    tp.check(config)

    per_replica = args.global_batch // dp.size()
    require_divides(dp.size(), args.global_batch, names=("dp", "global_batch"))
    require_divides(args.micro_batch, per_replica, names=("micro_batch", "global_batch / dp"))
    num_micro = per_replica // args.micro_batch

    stages = make_stages(config, tp, pp, args, job.device)
    modules = [stage.submod for stage in stages]
    gradients = GradientBuffer(modules, tp=tp, dp=dp, bucket_mb=args.bucket_mb)
    params = [param for module in modules for param in module.parameters()]
    optimizer = torch.optim.AdamW(params, lr=args.lr, weight_decay=0.1, fused=args.fused or None)

    def loss_fn(logits: Tensor, targets: Tensor) -> Tensor:
        # Divided here, once, so that sums over micro-batches and replicas are means and no gradient has to be scaled.
        return VocabParallelCrossEntropy.apply(logits, targets, tp) / (num_micro * dp.size())

    pipeline = stages if args.schedule == "interleaved" else stages[0]
    schedule = SCHEDULES[args.schedule](pipeline, n_microbatches=num_micro, loss_fn=loss_fn, scale_grads=False)

    has_first, has_last = stages[0].is_first, stages[-1].is_last
    reporting_rank = int(mesh.mesh[-1, 0, 0])
    for step in range(1, args.steps + 1):
        first = (step - 1) * args.global_batch + dp.get_local_rank() * per_replica
        tokens, targets = synthetic_batch(config, first=first, count=per_replica)
        inputs = (tokens.to(job.device, non_blocking=True),) if has_first else ()
        losses: list[Tensor] = []
        schedule.step(
            *inputs,
            target=targets.to(job.device, non_blocking=True) if has_last else None,
            losses=losses if has_last else None,
            return_outputs=False,
        )
        gradients.reduce()
        if has_last:
            loss = torch.stack(losses).detach().sum()
            dist.all_reduce(loss, group=dp.get_group())
        optimizer.step()
        gradients.zero()
        if has_last:
            job.print_loss(step, loss.item(), on_rank=reporting_rank)
    job.finish()


def make_mesh(job: Job, args: argparse.Namespace) -> DeviceMesh:
    """Arrange all ranks as a pp x dp x tp block."""
    require_divides(args.tp * args.pp, job.world_size, names=("tp x pp", "world size"))
    dp = args.dp or job.world_size // (args.tp * args.pp)
    if args.tp * args.pp * dp != job.world_size:
        raise ValueError(
            f"tp ({args.tp}) x pp ({args.pp}) x dp ({dp}) must be the world size ({job.world_size}); "
            f"try --dp {job.world_size // (args.tp * args.pp)}"
        )
    return init_device_mesh(job.device.type, (args.pp, dp, args.tp), mesh_dim_names=("pp", "dp", "tp"))


def make_stages(
    config: GPTConfig, tp: TensorGroup, pp: DeviceMesh, args: argparse.Namespace, device: torch.device
) -> list[PipelineStage]:
    """Build this rank's stages: one, or with interleaving every pp-th of pp x `--virtual-stages`."""
    num_stages = pp.size() * (args.virtual_stages if args.schedule == "interleaved" else 1)
    require_divides(num_stages, config.num_layers, names=("pp x virtual stages", "num_layers"))
    num_layers = config.num_layers // num_stages
    # The shapes at stage borders are known, so pipelining need not run the model to find them.
    num_tokens = args.micro_batch * config.seq_len
    dtype = getattr(torch, args.dtype)
    describe = partial(torch.empty, device="meta", dtype=dtype, requires_grad=True)
    tokens = torch.empty(args.micro_batch, config.seq_len, device="meta", dtype=torch.int64)
    activations = describe(num_tokens // tp.size if tp.sequence_parallel else num_tokens, config.hidden_size)
    logits = describe(num_tokens, config.vocab_size // tp.size)

    stages = []
    for index in range(pp.get_local_rank(), num_stages, pp.size()):
        with torch.device("meta"):
            module = ParallelGPT(config, tp, layers=range(index * num_layers, (index + 1) * num_layers)).to(dtype)
        module.to_empty(device=device)
        for name, param in module.named_parameters():
            init_parameter(name, param, config, seed=args.seed, shard=tp.rank, num_shards=tp.size)
        stages.append(
            PipelineStage(
                module,
                index,
                num_stages,
                device,
                input_args=tokens if index == 0 else activations,
                output_args=logits if index == num_stages - 1 else activations,
                group=pp.get_group(),
            )
        )
    return stages


class GradientBuffer:
    """Keep all gradients of a rank in one buffer: reducing them takes a few large all-reduces, not many small ones.

    Backward adds into the buffer in place, micro-batch by micro-batch; `reduce` runs once per step.
    """

    def __init__(self, modules: Sequence[nn.Module], *, tp: TensorGroup, dp: DeviceMesh, bucket_mb: float) -> None:
        replicated = [param for module in modules for param in module.replicated_parameters()]
        known = {id(param) for param in replicated}
        others = [param for module in modules for param in module.parameters() if id(param) not in known]
        first = (replicated + others)[0]
        self.tp, self.dp = tp, dp
        self.flat = first.new_zeros(sum(param.numel() for param in replicated + others), requires_grad=False)
        self.num_replicated = sum(param.numel() for param in replicated)
        self.bucket_numel = max(int(bucket_mb * 2**20) // self.flat.element_size(), 1)
        offset = 0
        for param in replicated + others:
            param.grad = self.flat[offset : offset + param.numel()].view_as(param)
            offset += param.numel()

    def reduce(self) -> None:
        """Sum over tp the gradients computed from a share of the sequence, then everything over dp."""
        if self.tp.sequence_parallel:
            dist.all_reduce(self.flat[: self.num_replicated], group=self.tp.group)
        if self.dp.size() > 1:
            for bucket in self.flat.split(self.bucket_numel):
                dist.all_reduce(bucket, group=self.dp.get_group())

    def zero(self) -> None:
        """Clear this step's gradients."""
        self.flat.zero_()


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="GPT with tensor x pipeline x data parallelism")
    add_model_arguments(parser)
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks")
    parser.add_argument("--pp", type=int, default=1, help="pipeline stages")
    parser.add_argument("--dp", type=int, help="replicas (default: world size / (tp x pp))")
    parser.add_argument("--global-batch", type=int, default=8, help="samples per step, all replicas together")
    parser.add_argument("--micro-batch", type=int, default=1, help="samples per micro-batch")
    parser.add_argument("--schedule", choices=["gpipe", "1f1b", "interleaved"], default="1f1b")
    parser.add_argument("--virtual-stages", type=int, default=2, help="stages per rank, for --schedule interleaved")
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument(
        "--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="type of parameters and compute"
    )
    parser.add_argument("--bucket-mb", type=float, default=256.0, help="gradients in one all-reduce (MiB)")
    parser.add_argument("--fused", action="store_true", help="fused AdamW kernel")
    return parser.parse_args()


if __name__ == "__main__":
    main()
