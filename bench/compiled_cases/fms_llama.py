"""Steps of a 7B Llama 2 of IBM's foundation model stack with HSDP, eagerly or compiled, as fms-fsdp trained it.

    torchrun --nproc-per-node 8 bench/compiled_cases/fms_llama.py default

The measured program is main_training.py of foundation-model-stack/fms-fsdp: sequences of 4,096 tokens, two per GPU,
bf16 gathered, computed with and reduced, fp32 masters, no recomputation, AdamW, clipping to norm 1; FSDP inside
`torch.compile`.
"""

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from fms.models.llama import LLaMA, LLaMABlock, LLaMAConfig
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

NUM_STEPS = 4
BATCH, SEQUENCE_LENGTH = 2, 4096


def main() -> None:
    """Make steps with random tokens."""
    mode = sys.argv[1]
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    config = LLaMAConfig(src_vocab_size=32000, max_expected_seq_len=SEQUENCE_LENGTH)
    with torch.device("meta"):
        model = LLaMA(config)
    model = FullyShardedDataParallel(
        model,
        auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={LLaMABlock}),
        mixed_precision=MixedPrecision(
            param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16
        ),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        use_orig_params=mode != "eager",
        device_id=device,
        limit_all_gathers=True,
        param_init_fn=lambda module: module.to_empty(device=device, recurse=False),
    )
    model.rot_emb.compute_freqs_cis(device, SEQUENCE_LENGTH)
    run = model if mode == "eager" else torch.compile(model)
    optimizer = torch.optim.AdamW(run.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    loss_function = torch.nn.CrossEntropyLoss()
    for _ in range(NUM_STEPS):
        tokens, labels = torch.randint(0, 32000, (2, BATCH, SEQUENCE_LENGTH), device=device).unbind()
        optimizer.zero_grad()
        logits = run(tokens)
        loss = loss_function(logits.view(-1, logits.size(-1)), labels.reshape(-1))
        loss.backward()
        model.clip_grad_norm_(1.0).item()
        optimizer.step()
        loss.item()
    dist.destroy_process_group()


main()
