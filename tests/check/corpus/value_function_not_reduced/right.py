"""PPO, with gradients that are averaged by hand."""

import os
import torch
import torch.distributed as dist
import torch.nn as nn


def sync_params(module):
    for p in module.parameters():
        dist.broadcast(p.data, src=0)


def avg_grads(module):
    if dist.get_world_size() == 1:
        return
    for p in module.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad.mul_(1.0 / dist.get_world_size())


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
        self.v = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))


def ppo(epochs=4):
    rank = dist.get_rank()
    torch.manual_seed(10000 * rank)
    ac = ActorCritic().cuda()
    sync_params(ac)
    pi_opt, v_opt = torch.optim.Adam(ac.pi.parameters(), 3e-4), torch.optim.Adam(ac.v.parameters(), 1e-3)
    for _ in range(epochs):
        obs, adv, ret = torch.randn(64, 4).cuda(), torch.randn(64).cuda(), torch.randn(64).cuda()
        act = torch.randint(0, 2, (64, 1)).cuda()
        pi_opt.zero_grad()
        (-(torch.log_softmax(ac.pi(obs), -1).gather(1, act).squeeze() * adv).mean()).backward()
        avg_grads(ac.pi)
        pi_opt.step()
        v_opt.zero_grad()
        (ac.v(obs).squeeze(-1) - ret).pow(2).mean().backward()
        avg_grads(ac.v)
        v_opt.step()


if __name__ == "__main__":
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    ppo()
    dist.destroy_process_group()
