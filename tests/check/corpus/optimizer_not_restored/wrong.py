# rule: state-not-restored
# source: own
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CKPT = "state.pt"


def build(device):
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(device))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    return model, opt, sched


def run(device, epochs):
    """One life of the job; a preempted job starts again here and goes on from its checkpoint."""
    model, opt, sched = build(device)
    start = 0
    if os.path.exists(CKPT):
        state = torch.load(CKPT, map_location=device)  # <-- here
        model.module.load_state_dict(state["model"])  # <-- here
        start = state["epoch"] + 1
    g = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(64, 8, generator=g), torch.randn(64, 1, generator=g))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    for epoch in range(start, epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad()
            nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
            opt.step()
        sched.step()
        if dist.get_rank() == 0:
            torch.save(
                {
                    "model": model.module.state_dict(),
                    "opt": opt.state_dict(),
                    "sched": sched.state_dict(),
                    "epoch": epoch,
                },
                CKPT,
            )
        dist.barrier()


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    if dist.get_rank() == 0 and os.path.exists(CKPT):
        os.remove(CKPT)
    dist.barrier()
    run(device, epochs=1)
    run(device, epochs=2)  # after preemption
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
