"""One worker of an all-reduce by gloo; waits for a line after it has joined, then says seconds."""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

rank, world, master, count = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
dist.init_process_group("gloo", f"tcp://{master}:29500", rank=rank, world_size=world)
tensor = torch.ones(count)
dist.all_reduce(tensor)
print(json.dumps({"ready": True}), flush=True)
sys.stdin.readline()
times = []
for _ in range(int(sys.argv[5])):
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(tensor)
    times.append(time.perf_counter() - began)
told = {"usual": statistics.median(times), "best": min(times), "first": float(tensor[0])}
print(json.dumps(told), flush=True)
dist.destroy_process_group()
