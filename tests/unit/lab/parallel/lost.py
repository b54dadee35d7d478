"""Ranks that are lost: one ends, hangs, calls another collective, or computes what is not a number."""

import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist

from peakward.lab.parallel import arms
from peakward.lab.parallel.step import expect_finite

N_STEPS = 4


def lose(rank, arguments, tell):
    """Steps of an all-reduce; in the third of them the chosen rank is lost as `how` says."""
    torch.set_default_device(rank.device)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    for step in range(1, N_STEPS + 1):
        tell(step, "forward")
        is_lost = step == 3 and rank.number == arguments["rank"]
        loss = torch.ones(())
        if is_lost:
            loss = getattr(sys.modules[__name__], arguments["how"])(loss)
        expect_finite(loss, step)
        tell(step, "all-reduce")
        dist.all_reduce(loss)
    return {"child": child.pid}


def poisoned(rank, arguments, tell):
    """A comparison of arms in which the loss of the second rank is not a number."""
    own = arms.decoder_loss

    def loss(model, batch):
        return own(model, batch) * (float("nan") if rank.number == 1 else 1.0)

    arms.decoder_loss = loss
    return arms.measure(rank, arguments, tell)


def fine(loss):
    return loss


def killed(loss):
    os.kill(os.getpid(), signal.SIGKILL)
    return loss


def exits(loss):
    os._exit(3)


def raises(loss):
    raise ValueError("the loader is empty")


def hangs(loss):
    time.sleep(600)
    return loss


def diverges(loss):
    dist.barrier()
    return loss


def not_a_number(loss):
    return loss * float("nan")
