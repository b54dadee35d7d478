"""A process as a rank of a job: joining the others, and the mesh that they form."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from peakward.records.case import DeviceType
from peakward.records.errors import PeakwardError
from peakward.records.layout import Layout, expect_runnable


class Rank(NamedTuple):
    """This process among the others."""

    number: int
    n_ranks: int
    device: torch.device


@contextmanager
def joined(device: DeviceType, *, timeout_s: float = 600.0) -> Iterator[Rank]:
    """Joins the job that torchrun, or our own launcher, described in the environment.

    NCCL's streams get a high priority, so that a reduction begins as soon as its gradients are there.

    Args:
        timeout_s: after which a collective that others do not join raises.

    Raises:
        PeakwardError: not started as a rank, more ranks than GPUs, or a port in use.
    """
    number, n_ranks, local = (_stated(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    place = torch.device(device, local) if device == "cuda" else torch.device(device)
    if device == "cuda":
        if local >= torch.cuda.device_count():
            raise PeakwardError(
                f"expected a GPU for each rank of this machine, got rank {local} and "
                f"{torch.cuda.device_count()} GPUs: start fewer ranks"
            )
        torch.cuda.set_device(place)
        os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")
    try:
        dist.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            timeout=timedelta(seconds=timeout_s),
            device_id=place if device == "cuda" else None,
        )
    except dist.DistNetworkError as error:
        raise PeakwardError(
            f"expected a free port for the ranks to meet at, got {os.environ.get('MASTER_PORT')}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    yield Rank(number, n_ranks, place)
    # Not after an error: over NCCL it would wait for the others, who wait for this rank, and nobody be told.
    dist.destroy_process_group()


def _stated(name: str) -> int:
    text = os.environ.get(name)
    if text is None:
        raise PeakwardError(
            f"expected a rank of a job, got a process without {name}: start it with torchrun"
        )
    return int(text)


AXES = ("pp", "dp", "tp")
"""The last has neighbouring ranks: what communicates most is nearest."""


def mesh(layout: Layout, rank: Rank) -> DeviceMesh:
    """All ranks as (pp, dp, tp).

    Raises:
        PeakwardError: as `expect_runnable`.
    """
    expect_runnable(layout, rank.n_ranks)
    return init_device_mesh(
        rank.device.type, (layout.pp, layout.dp, layout.tp), mesh_dim_names=AXES
    )
