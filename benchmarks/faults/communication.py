"""Gradients that travel after the backward pass and not during it."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel

from faults.decoder import SIZES, decoder, optimizer, tokens, training
from faults.lab import Lab, profiled
from faults.reading import of_trace
from faults.records import Fault, Seen
from peakward.lab.measure.profile import write

N_RANKS = 2


def _rank(rank: int, strength: float, port: int, path: str) -> None:
    """One of the two: a step loop, of which rank 0 writes its trace."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=N_RANKS)
    torch.manual_seed(0)
    sizes = SIZES["cuda"]._replace(batch_size=int(4 / (strength or 1)))
    made = decoder(sizes, "cuda")
    update = optimizer(made)
    if strength:
        # All gradients are there, and then one after another is reduced.
        def reduce(*_: object) -> None:
            for each in made.parameters():
                dist.all_reduce(each.grad, op=dist.ReduceOp.AVG)

        update.register_step_pre_hook(reduce)
        step = training(made, tokens(sizes, "cuda"), update)
    else:
        spread = DistributedDataParallel(made, device_ids=[rank], gradient_as_bucket_view=True)
        step = training(spread, tokens(sizes, "cuda"), update)
    for _ in range(3):
        step()
    running = profiled(step, "cuda")
    if rank == 0:
        write(running, Path(path))
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


def _late(_lab: Lab, strength: float) -> Seen:
    """Smaller batches leave less compute beside the same gradients."""
    with tempfile.TemporaryDirectory(prefix="peakward-") as scratch:
        path = Path(scratch) / "rank0.json.gz"
        port = 29_500 + os.getpid() % 1000
        torch.multiprocessing.spawn(_rank, (strength, port, str(path)), nprocs=N_RANKS)
        return of_trace(path)


FAULTS = (
    Fault(
        "COMM001", "gradients reduced at the end", "th of the tokens", (1, 2, 4), _late, "two GPUs"
    ),
)
