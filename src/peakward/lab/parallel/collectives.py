"""The ranks' part of timing collectives by size (`measured.timed`)."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from peakward.lab.measure.clock import clock_for
from peakward.lab.parallel.ranks import Rank
from peakward.records.case import DeviceType
from peakward.records.layout import Collective

MB = 10**6
N_REPEATS = 5
REPEAT_S = {"cuda": 0.03, "cpu": 0.02}
"""Seconds of calls back to back in one repeat."""


def measure(
    rank: Rank, arguments: Mapping[str, Any], tell: Callable[[int, str], None]
) -> dict[str, Any]:
    """Each collective and size as (name, bytes, seconds of the repeats)."""
    device = rank.device
    times = []
    for at, n_bytes in enumerate(arguments["sizes"]):
        for name, make in COLLECTIVES.items():
            tell(at + 1, f"{name} of {n_bytes / MB:g} MB")
            times.append((name, n_bytes, _repeats_s(make(n_bytes, rank), rank)))
    known = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {
        "times": times,
        "device_name": known,
        "backend": dist.get_backend(),
        "torch": str(torch.__version__),
    }


def _all_reduce(n_bytes: int, rank: Rank) -> Callable[[], object]:
    whole = _tensor(n_bytes, rank)
    return lambda: dist.all_reduce(whole)


def _all_gather(n_bytes: int, rank: Rank) -> Callable[[], object]:
    part = _tensor(n_bytes // rank.n_ranks, rank)
    whole = _tensor(part.nbytes * rank.n_ranks, rank)
    return lambda: dist.all_gather_into_tensor(whole, part)


def _reduce_scatter(n_bytes: int, rank: Rank) -> Callable[[], object]:
    part = _tensor(n_bytes // rank.n_ranks, rank)
    whole = _tensor(part.nbytes * rank.n_ranks, rank)
    return lambda: dist.reduce_scatter_tensor(part, whole)


def _all_to_all(n_bytes: int, rank: Rank) -> Callable[[], object]:
    size = n_bytes // rank.n_ranks // 2 * rank.n_ranks * 2
    given, taken = _tensor(size, rank), _tensor(size, rank)
    return lambda: dist.all_to_all_single(taken, given)


def _point_to_point(n_bytes: int, rank: Rank) -> Callable[[], object]:
    """Even ranks send to the next one; a last one without a partner does nothing."""
    whole, peer = _tensor(n_bytes, rank), rank.number ^ 1
    if peer >= rank.n_ranks:
        return lambda: None
    if rank.number % 2 == 0:
        return lambda: dist.send(whole, peer)
    return lambda: dist.recv(whole, peer)


COLLECTIVES: dict[Collective, Callable[[int, Rank], Callable[[], object]]] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "point-to-point": _point_to_point,
}


def _tensor(n_bytes: int, rank: Rank) -> Tensor:
    """bf16, as gradients are; fp32 over gloo, which adds bf16 up one by one."""
    dtype = torch.bfloat16 if rank.device.type == "cuda" else torch.float32
    return torch.zeros(n_bytes // dtype.itemsize, dtype=dtype, device=rank.device)


def _repeats_s(call: Callable[[], object], rank: Rank) -> list[float]:
    """Seconds of a call in each repeat: the slowest rank's mean."""
    kind: DeviceType = "cuda" if rank.device.type == "cuda" else "cpu"
    clock = clock_for(kind)
    clock.reserve(2)
    for _ in range(2):
        call()

    def seconds(n_calls: int) -> float:
        _meet(rank)
        clock.mark(0)
        for _ in range(n_calls):
            call()
        clock.mark(1)
        clock.wait(1)
        mean = torch.tensor([clock.between_s(0, 1) / n_calls], device=rank.device)
        dist.all_reduce(mean, op=dist.ReduceOp.MAX)
        return float(mean)

    n_calls = max(1, min(200, round(REPEAT_S[kind] / seconds(1))))
    return [seconds(n_calls) for _ in range(N_REPEATS)]


def _meet(rank: Rank) -> None:
    """All ranks begin together, with nothing left to do on their devices."""
    dist.all_reduce(torch.zeros(1, device=rank.device))
    if rank.device.type == "cuda":
        torch.cuda.synchronize()
