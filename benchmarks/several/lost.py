"""Ranks of a job that is lost on purpose: one is killed, hangs, or goes another way through the code."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from peakward.lab.parallel.ranks import Rank
from peakward.lab.parallel.step import expect_finite

N_STEPS = 6
AT = 4


def lose(
    rank: Rank, arguments: Mapping[str, Any], tell: Callable[[int, str], None]
) -> dict[str, Any]:
    """Steps of a product and an all-reduce; the last rank is lost in the fourth.

    Each rank leaves its process id in `folder`, and the last one the time of its loss.
    """
    folder = Path(arguments["folder"])
    folder.joinpath(f"pid-{rank.number}").write_text(str(os.getpid()))
    a = torch.randn(512, 512, device=rank.device)
    for step in range(1, N_STEPS + 1):
        tell(step, "forward")
        loss = (a @ a).square().mean()
        if step == AT and rank.number == rank.n_ranks - 1:
            folder.joinpath("lost-at").write_text(str(time.monotonic()))
            loss = HOW[arguments["how"]](loss)
        expect_finite(loss, step)
        tell(step, "all-reduce")
        dist.all_reduce(loss)
        float(loss)
    return {}


def _killed(loss: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return loss


def _hung(loss: torch.Tensor) -> torch.Tensor:
    time.sleep(3600)
    return loss


def _diverged(loss: torch.Tensor) -> torch.Tensor:
    dist.all_gather_into_tensor(torch.empty(dist.get_world_size(), device=loss.device), loss[None])
    float(loss)
    return loss


def _not_a_number(loss: torch.Tensor) -> torch.Tensor:
    return loss * float("nan")


HOW = {"killed": _killed, "hung": _hung, "diverged": _diverged, "nan": _not_a_number}
