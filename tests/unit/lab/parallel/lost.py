"""Ranks that are lost: one ends, hangs, calls another collective, or computes what is not a number."""

import os
import signal
import subprocess
import sys
import time

import msgspec
import torch
import torch.distributed as dist

from peakward.records.case import ModelCase
from peakward.records.layout import Layout

# What measures is imported where it runs: it brings torch's compiler, two seconds of a core a rank.

N_STEPS = 4


def lose(rank, arguments, tell):
    """Steps of an all-reduce; in the third of them the chosen rank is lost as `how` says."""
    torch.set_default_device(rank.device)
    child = subprocess.Popen(["sleep", "600"])
    for step in range(1, N_STEPS + 1):
        tell(step, "forward")
        is_lost = step == 3 and rank.number == arguments["rank"]
        loss = torch.ones(())
        if is_lost:
            loss = getattr(sys.modules[__name__], arguments["how"])(loss)
        tell(step, "all-reduce")
        dist.all_reduce(loss)
    return {"child": child.pid}


def poisoned(rank, arguments, tell):
    """A comparison of arms in which the loss of the second rank is not a number."""
    from peakward.lab.parallel import arms, subjects

    own = subjects.decoder_loss

    def loss(model, batch):
        return own(model, batch) * (float("nan") if rank.number == 1 else 1.0)

    subjects.decoder_loss = loss
    return arms.measure(rank, arguments, tell)


def lacking(rank, arguments, tell):
    """A comparison of arms in which the second rank alone has too little memory."""
    from peakward.lab.parallel import arms, subjects

    own = subjects.decoder_loss

    def loss(model, batch):
        if rank.number == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return own(model, batch)

    subjects.decoder_loss = loss
    return arms.measure(rank, arguments, tell)


def sleepy(rank, arguments, tell):
    """A comparison of arms in which one rank sleeps in its forward pass."""
    from peakward.lab.parallel import arms, subjects

    own = subjects.decoder_loss

    def loss(model, batch):
        if rank.number == arguments["rank"]:
            time.sleep(arguments["seconds"])
        return own(model, batch)

    subjects.decoder_loss = loss
    return arms.measure(rank, arguments["request"], tell)


def types(rank, arguments, tell):
    """The type that the first block of each rank computes in, by layout."""
    from peakward.lab.models import decoder
    from peakward.lab.parallel import ranks, subjects
    from peakward.lab.parallel.step import ParallelStep

    case, found = msgspec.convert(arguments["case"], ModelCase), {}
    for name, given in arguments["layouts"].items():
        layout, seen = msgspec.convert(given, Layout), []
        own = subjects.subject(case, layout, rank.device)
        mesh = ranks.mesh(layout, rank)
        step = ParallelStep(
            own.module, layout, mesh, optimizer=torch.optim.SGD, loss=own.loss, around=own.around
        )
        for each in step.modules:
            block = next(part for part in each.modules() if isinstance(part, decoder.Block))
            up = block.ff.up
            up.register_forward_hook(lambda _of, _given, made, seen=seen: seen.append(made.dtype))
        step.step(own.batch(mesh["dp"].get_local_rank()))
        found[name] = str(seen[0])
    return found


def orderly(rank, arguments, tell):
    """A job that ends by itself: what its ranks started, and the types that they compute in."""
    lost = {"rank": 1, "how": "fine"}
    return {"types": types(rank, arguments, tell)} | lose(rank, lost, tell)


def fine(loss):
    return loss


def killed(loss):
    os.kill(os.getpid(), signal.SIGKILL)
    return loss


def exits(loss):
    os._exit(3)


def restores(loss):
    raise KeyError("could not restore the state of layer 3")


def raises(loss):
    raise ValueError("the loader is empty")


def hangs(loss):
    time.sleep(600)
    return loss


def diverges(loss):
    dist.barrier()
    return loss


def not_a_number(loss):
    from peakward.lab.parallel.step import expect_finite

    expect_finite(loss * float("nan"), 3)
    return loss
