import os
import tempfile
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def save(path, step, model, opt):
    if dist.get_rank() == 0:
        torch.save({"step": step, "model": model.module.state_dict(), "opt": opt.state_dict()}, path)
    dist.barrier()


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    model = DDP(
        nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda(),
        device_ids=[local],
    )
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    path = os.path.join(tempfile.gettempdir(), "last_e15.pt")
    torch.manual_seed(dist.get_rank())
    for step in range(1, 41):
        x = torch.randn(1024, 512, device="cuda")
        loss = nn.functional.mse_loss(model(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            save(path, step, model, opt)
    dist.destroy_process_group()


main()
