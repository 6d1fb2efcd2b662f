"""Train a GPT as Megatron-LM does: tensor, sequence, pipeline and data parallelism, mixed precision, recomputation.

    torchrun --standalone --nproc-per-node 4 validation/scripts/megatron_gpt.py --tp 2 --pp 2 --dtype float32

A real training script, written for comparisons with published figures: it runs the kernels and makes the calls that
Megatron-LM of 2020 to 2023 did, and its flags choose what differed between versions. On CPUs it trains over gloo.
"""

import argparse
import math
import zlib
from collections.abc import Sequence

import examples_path  # noqa: F401
import torch
import torch.distributed as dist
from gpt_text import GPTConfig, synthetic_batch
from job import Job, require_divides, start
from megatron_exchange import Exchange
from megatron_layers import Options
from megatron_model import GPTStage
from megatron_optimizer import GradientBuffer, MixedPrecisionAdam
from megatron_schedules import Pipeline
from parallel_layout import Layout, RandomStates
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

NUM_PIECES = 16  # a weight is drawn in so many pieces, if its size allows


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    job = start()
    layout = Layout.make(job, tp=args.tp, pp=args.pp)
    trainer = Trainer(args, job, layout)
    if args.init_optimizer:
        trainer.optimizer.make_states()
    for step in range(1, args.steps + 1):
        loss = trainer.step(step)
        if layout.pp.is_last:
            job.print_loss(step, loss.item(), on_rank=dist.get_world_size() - 1)
    job.finish()


class Trainer:
    """One rank's part of the training."""

    def __init__(self, args: argparse.Namespace, job: Job, layout: Layout) -> None:
        self.args, self.device, self.layout = args, job.device, layout
        self.config = GPTConfig(
            num_layers=args.layers,
            hidden_size=args.hidden,
            num_heads=args.heads,
            vocab_size=args.vocab,
            seq_len=args.seq,
        )
        self.dtype = getattr(torch, args.dtype)
        self.options = Options(
            tp=layout.tp,
            random=RandomStates(job.device, seed=args.seed, tp_rank=layout.tp.rank),
            dropout=args.dropout,
            recompute=args.recompute,
            sequence_parallel=args.sequence_parallel and args.tp > 1,
            async_tensor=args.async_tensor,
            fused_wgrad=args.fused_wgrad,
        )
        require_divides(
            layout.dp.size * args.micro_batch, args.global_batch, names=("dp x micro-batch", "global_batch")
        )
        self.num_micro = args.global_batch // (layout.dp.size * args.micro_batch)
        self.modules = [self.make_stage(chunk) for chunk in range(args.virtual_stages)]
        params = [param for module in self.modules for param in module.parameters()]
        self.buffer = None
        self.runners: Sequence[nn.Module] = self.modules
        if args.ddp == "torch":
            self.runners = [DistributedDataParallel(m, process_group=layout.dp.group) for m in self.modules]
        else:
            dtype = torch.float32 if args.grad_dtype == "float32" else self.dtype
            self.buffer = GradientBuffer(params, dtype=dtype, dp=layout.dp)
        self.optimizer = MixedPrecisionAdam(params, layout=layout, shares=self.norm_shares(), lr=args.lr)
        self.pipeline = Pipeline(
            stages=[self.make_runner(module) for module in self.runners],
            exchange=self.make_exchange(),
            num_micro=self.num_micro,
            scale_loss=self.scale_loss,
        )
        self.losses: list[Tensor] = []
        self.first_sample = 0

    def step(self, number: int) -> Tensor:
        """One optimizer step; its loss, on the last stage."""
        self.first_sample = (number - 1) * self.args.global_batch
        if self.buffer is not None:
            self.buffer.zero()
        else:
            for module in self.modules:
                module.zero_grad()
        self.losses.clear()
        self.pipeline.run()
        self.reduce_gradients()
        self.optimizer.step(max_norm=1.0)
        return torch.stack(self.losses).mean() if self.losses else torch.zeros((), device=self.device)

    def make_stage(self, chunk: int) -> GPTStage:
        """This rank's stage number `chunk`, with its initial values."""
        args, pp = self.args, self.layout.pp
        num_stages = pp.size * args.virtual_stages
        number = chunk * pp.size + pp.rank
        layers = layers_of_stage(number, num_stages, self.config.num_layers, short_ends=args.short_ends)
        with torch.device("meta"):
            stage = GPTStage(
                self.config, self.options, layers=layers, is_first=number == 0, is_last=number == num_stages - 1
            ).to(self.dtype)
        stage.to_empty(device=self.device)
        for name, param in stage.named_parameters():
            self.initialise(name, param)
        return stage

    @torch.no_grad()
    def initialise(self, name: str, param: Tensor) -> None:
        """GPT-2's initial values: normal(0, 0.02), less where a layer adds to the residual stream.

        A weight is drawn in a few pieces, each from a seed of its own, and a rank draws those it holds: the model is
        the same for every tp that divides the number of pieces.
        """
        module, kind = name.split(".")[-2:]
        if kind == "bias":
            param.zero_()
        elif module.startswith("ln"):
            param.fill_(1.0)
        else:
            std = 0.02 / math.sqrt(2 * self.config.num_layers) if module in ("proj", "fc2") else 0.02
            tp = self.layout.tp
            total = 1 if module == "wpe" else math.gcd(self.config.hidden_size, self.config.vocab_size, NUM_PIECES)
            shard, num_shards = (0, 1) if module == "wpe" else (tp.rank, tp.size)
            require_divides(num_shards, total, names=("tp", "pieces of a weight"))
            pieces = param.chunk(total // num_shards, dim=1 if module in ("proj", "fc2") else 0)
            for number, piece in enumerate(pieces, start=shard * len(pieces)):
                seed = zlib.crc32(f"{self.args.seed}/{name}/{number}".encode())
                generator = torch.Generator(self.device).manual_seed(seed)
                piece.copy_(torch.empty(piece.shape, device=self.device).normal_(0.0, std, generator=generator))

    def make_runner(self, module: nn.Module) -> "StageRunner":
        """What the schedule calls."""
        return StageRunner(self, module)

    def make_exchange(self) -> Exchange:
        """How stages talk."""
        args, options = self.args, self.options
        seq = args.seq // args.tp if options.sequence_parallel else args.seq
        return Exchange(
            pp=self.layout.pp,
            tp=self.layout.tp,
            shape=(seq, args.micro_batch, args.hidden),
            dtype=self.dtype,
            device=self.device,
            scatter=args.scatter_gather and args.tp > 1 and not options.sequence_parallel,
            synchronize=not args.no_p2p_sync,
        )

    def get_batch(self, micro_batch: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets of a micro-batch. The tp ranks use what the first of them read.

        Sizes travel first, and are read on the host: one more point where it waits for the device.
        """
        args, dp, tp = self.args, self.layout.dp, self.layout.tp
        first = self.first_sample + (micro_batch * dp.size + dp.rank) * args.micro_batch
        data = torch.stack(synthetic_batch(self.config, first=first, count=args.micro_batch))
        sizes = torch.tensor(data.shape, device=self.device)
        data = data.to(self.device, non_blocking=True)
        if tp.size > 1:
            dist.broadcast(sizes, group=tp.group, group_src=0)
        shape = sizes.tolist()
        if tp.size > 1:
            dist.broadcast(data, group=tp.group, group_src=0)
        tokens, targets = data.view(shape)
        return tokens, targets

    def log(self, losses: Tensor) -> Tensor:
        """The loss of a micro-batch; its mean over replicas is kept for the log."""
        loss = losses.float().mean()
        logged = loss.detach().clone()
        if self.layout.dp.size > 1:
            dist.all_reduce(logged, group=self.layout.dp.group)
        self.losses.append(logged / self.layout.dp.size)
        return loss

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The mean over micro-batches, scaled for half precision."""
        return self.optimizer.scale_loss(loss / self.num_micro)

    def reduce_gradients(self) -> None:
        """Add up what different ranks know of one gradient: over tp, over dp, and between the two ends."""
        layout, options = self.layout, self.options
        if options.sequence_parallel:
            grads = [param.main_grad for module in self.modules for param in module.sequence_parameters()]
            flat = torch.cat([grad.flatten() for grad in grads])
            dist.all_reduce(flat, group=layout.tp.group)
            for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
                grad.copy_(part.view_as(grad))
        if self.buffer is not None:
            self.buffer.reduce()
        if layout.embedding is not None:
            module = self.modules[0] if layout.pp.is_first else self.modules[-1]
            dist.all_reduce(module.wte.weight.main_grad, group=layout.embedding)

    def norm_shares(self) -> list[float]:
        """How much of each parameter this rank counts in the norm of the gradient, so that none counts twice."""
        shares = []
        for module in self.modules:
            replicated = {id(param) for param in module.sequence_parameters()}
            for name, param in module.named_parameters():
                is_replicated = id(param) in replicated or name.startswith("wpe")
                is_copy = name.startswith("wte") and not module.is_first
                shares.append(0.0 if is_copy else 1.0 / self.layout.tp.size if is_replicated else 1.0)
        return shares


class StageRunner:
    """Runs a micro-batch through one stage: fetches its data, and turns the last stage's losses into one."""

    def __init__(self, trainer: Trainer, module: nn.Module) -> None:
        self.trainer, self.module = trainer, module
        stage = module.module if isinstance(module, DistributedDataParallel) else module
        self.is_first, self.is_last = stage.is_first, stage.is_last

    def __call__(self, x: Tensor | None, micro_batch: int) -> Tensor:
        """Activations, or the loss."""
        tokens, targets = self.trainer.get_batch(micro_batch)
        out = self.module(tokens if self.is_first else x, targets)
        return self.trainer.log(out) if self.is_last else out


def layers_of_stage(number: int, num_stages: int, num_layers: int, *, short_ends: bool) -> range:
    """Which layers a stage has. With `short_ends` the first and the last stage have one fewer than the others."""
    total = num_layers + 2 if short_ends else num_layers
    require_divides(num_stages, total, names=("pp x virtual stages", "num_layers (+ 2 with --short-ends)"))
    each = total // num_stages
    first, last = number * each, (number + 1) * each
    if short_ends:
        first, last = max(first - 1, 0), min(last - 1, num_layers)
    return range(first, last)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = parser.add_argument_group("model")
    model.add_argument("--layers", type=int, default=4)
    model.add_argument("--hidden", type=int, default=64)
    model.add_argument("--heads", type=int, default=4)
    model.add_argument("--seq", type=int, default=32)
    model.add_argument("--vocab", type=int, default=512, help="padded; tp must divide vocab / 128")
    model.add_argument("--dropout", type=float, default=0.1)
    parallel = parser.add_argument_group("parallelism")
    parallel.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks")
    parallel.add_argument("--pp", type=int, default=1, help="pipeline-parallel ranks")
    parallel.add_argument("--virtual-stages", type=int, default=1, help="stages a rank; above 1: interleaved schedule")
    parallel.add_argument("--sequence-parallel", action="store_true")
    parallel.add_argument("--short-ends", action="store_true", help="first and last stage have one layer fewer")
    parallel.add_argument("--scatter-gather", action="store_true", help="tp ranks send a share of each activation")
    parallel.add_argument("--no-p2p-sync", action="store_true", help="do not wait for the device after an exchange")
    parallel.add_argument(
        "--ddp", choices=["local", "torch"], default="local", help="all-reduce at the end or overlapped"
    )
    training = parser.add_argument_group("training")
    training.add_argument("--global-batch", type=int, default=8, help="samples a step, all replicas together")
    training.add_argument("--micro-batch", type=int, default=1, help="samples a micro-batch")
    training.add_argument("--recompute", choices=["none", "full", "selective"], default="none")
    training.add_argument("--async-tensor", action="store_true", help="overlap tp exchanges with weight gradients")
    training.add_argument("--fused-wgrad", action="store_true", help="matrix products add to the gradient buffer")
    training.add_argument("--dtype", choices=["float16", "bfloat16", "float32"], default="float16")
    training.add_argument("--grad-dtype", choices=["same", "float32"], default="same", help="of the gradient buffer")
    training.add_argument("--init-optimizer", action="store_true", help="make the optimizer's states before step 1")
    training.add_argument("--steps", type=int, default=3)
    training.add_argument("--lr", type=float, default=1e-3)
    training.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.virtual_stages > 1:
        require_divides(args.pp, args.global_batch // args.micro_batch, names=("pp", "micro-batches"))
        if args.pp < 3:
            parser.error(f"--virtual-stages needs --pp of at least 3, but got {args.pp}")
    if args.fused_wgrad and args.ddp == "torch":
        parser.error("--fused-wgrad needs --ddp local: torch's buckets are filled by autograd")
    return args


if __name__ == "__main__":
    main()
