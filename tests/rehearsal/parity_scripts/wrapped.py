"""A small language model under DDP, FSDP2 or FSDP1, chosen with `--wrap`; the batch is one for the whole job."""

import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Config:
    hidden: int
    layers: int
    vocab: int = 96
    length: int = 12


class Sentences(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, config):
        generator = torch.Generator().manual_seed(7)
        self.ids = torch.randint(config.vocab, (64, config.length + 1), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"inputs": self.ids[index, :-1], "labels": self.ids[index, 1:]}


class LanguageModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                config.hidden, 2, 2 * config.hidden, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(config.layers)
        )
        self.head = nn.Linear(config.hidden, config.vocab, bias=False)

    def forward(self, ids):
        tokens = self.tokens(ids)
        for layer in self.layers:
            tokens = layer(tokens)
        return self.head(tokens)


def wrap(model, how, device):
    if how == "ddp":
        return DistributedDataParallel(model, device_ids=[device])
    if how == "fsdp1":
        return FullyShardedDataParallel(model, device_id=device, use_orig_params=True)
    if how == "fsdp1-flat":
        return FullyShardedDataParallel(model, device_id=device)
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--wrap", default="ddp")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=0)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    world = dist.get_world_size()

    torch.manual_seed(0)
    config = Config(hidden=args.hidden, layers=args.layers)
    data = Sentences(config)
    model = wrap(LanguageModel(config).to(device), args.wrap, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    micro_batch = args.micro_batch or args.global_batch // world
    num_micro = args.global_batch // (micro_batch * world)
    loader = DataLoader(data, batch_size=micro_batch, sampler=DistributedSampler(data, shuffle=True), drop_last=True)
    batches = iter(loader)
    for _ in range(64 // args.global_batch):
        for _ in range(num_micro):
            batch = {name: tensor.to(device, non_blocking=True) for name, tensor in next(batches).items()}
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.bf16):
                logits = model(batch["inputs"])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()) / num_micro
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
