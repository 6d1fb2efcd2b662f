"""Sum rank + 1 over all ranks, and print the sum and the host."""

import socket

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(value)
print(f"sum {value[-1].item()} of {dist.get_world_size()} on {socket.gethostname()}", flush=True)
dist.barrier()
dist.destroy_process_group()
