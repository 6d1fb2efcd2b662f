# rule: overwritten-while-sent
# source: pytorch/pytorch#126946
import os
from dataclasses import dataclass
import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Config:
    vocab: int = 1000
    dim: int = 128
    seq: int = 64
    batch: int = 16
    steps: int = 12
    lr: float = 1e-3


class Corpus:
    def __init__(self, cfg, rank):
        self.tokens = np.random.default_rng(0).integers(0, cfg.vocab, 1_000_000)
        self.rng = np.random.default_rng(rank + 1)
        self.cfg = cfg
        self.staging = torch.empty(cfg.batch, cfg.seq + 1, dtype=torch.long, pin_memory=True)

    def batch(self):
        starts = self.rng.integers(0, len(self.tokens) - self.cfg.seq - 1, self.cfg.batch)
        for i, s in enumerate(starts):
            self.staging[i].copy_(torch.from_numpy(self.tokens[s : s + self.cfg.seq + 1]))  # <-- here
        on_card = self.staging.to("cuda", non_blocking=True)  # <-- here
        return on_card[:, :-1], on_card[:, 1:]


class TinyLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.dim)
        self.layer = nn.TransformerEncoderLayer(cfg.dim, 4, 4 * cfg.dim, dropout=0.0, batch_first=True)
        self.head = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, idx):
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1), device=idx.device)
        return self.head(self.layer(self.emb(idx), src_mask=mask, is_causal=True))


def main(cfg=Config()):
    dist.init_process_group("nccl")
    rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    model = DDP(TinyLM(cfg).cuda(), device_ids=[local])
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    corpus = Corpus(cfg, rank)
    for step in range(cfg.steps):
        x, y = corpus.batch()
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


main()
