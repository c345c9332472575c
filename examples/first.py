"""The first program: an all-reduce over whatever devices the ranks have."""

import torch
import torch.distributed as dist

import kaitian

device = kaitian.device()
dist.init_process_group("kaitian")
x = torch.full((4,), float(dist.get_rank()), device=device)
dist.all_reduce(x)
print(f"rank {dist.get_rank()} on {device}: {x.tolist()}")
dist.destroy_process_group()
