"""Train Megatron-Core's GPT with its distributed optimizer (pip install megatron-core).

    torchrun --standalone --nproc-per-node 8 examples/gpt_megatron.py --tp 2 --pp 2

Gradients and parameters lie in flat buffers, of which each data-parallel rank updates an equal shard. Layers are those
of Megatron-Core itself ("local"), which need neither Transformer Engine nor Apex.
"""

import argparse
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from gpt_model import add_model_arguments, config_from, synthetic_batch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


def main() -> None:
    """Train for `--steps` steps."""
    args = parse_arguments()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(args.tp, args.pp)
    model_parallel_cuda_manual_seed(args.seed)
    gpt = config_from(args)
    config = TransformerConfig(
        num_layers=gpt.num_layers,
        hidden_size=gpt.hidden_size,
        num_attention_heads=gpt.num_heads,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        tensor_model_parallel_size=args.tp,
        pipeline_model_parallel_size=args.pp,
    )
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=gpt.vocab_size,
        max_sequence_length=gpt.seq_len,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    )
    ddp = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(
            use_distributed_optimizer=True,
            overlap_grad_reduce=True,
            grad_reduce_in_fp32=True,
            bucket_size=args.bucket_elements,
        ),
        model.cuda().bfloat16(),
    )
    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = ddp.no_sync
    settings = OptimizerConfig(
        optimizer="adam",
        lr=args.lr,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_distributed_optimizer=True,
        clip_grad=1.0,
    )
    optimizer = get_megatron_optimizer(settings, [ddp])

    def forward_step(_: object, stage: torch.nn.Module) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, object]]]:
        tokens, targets = synthetic_batch(gpt, first=dist.get_rank() * args.micro_batch, count=args.micro_batch)
        positions = torch.arange(gpt.seq_len, device="cuda").expand(args.micro_batch, -1)
        mask = torch.ones(1, 1, gpt.seq_len, gpt.seq_len, dtype=torch.bool, device="cuda").triu(1)
        return stage(tokens.cuda(), positions, mask, labels=targets.cuda()), lambda losses: (losses.mean(), {})

    for _ in range(args.steps):
        ddp.zero_grad_buffer()
        optimizer.zero_grad()
        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=None,
            model=ddp,
            num_microbatches=args.micro_batches,
            seq_length=gpt.seq_len,
            micro_batch_size=args.micro_batch,
            forward_only=False,
        )
        optimizer.step()
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="GPT with Megatron-Core's distributed optimizer")
    add_model_arguments(parser)
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks")
    parser.add_argument("--pp", type=int, default=1, help="pipeline stages")
    parser.add_argument("--micro-batch", type=int, default=2, help="samples per rank and micro-batch")
    parser.add_argument("--micro-batches", type=int, default=2, help="micro-batches per step")
    parser.add_argument("--bucket-elements", type=int, help="elements reduced together (default: Megatron's own)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
