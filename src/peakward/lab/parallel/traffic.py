"""Counts what a step of this rank sends, and how much of that hides behind other work."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from peakward.records.parallel import Sent

CALLS = {
    "allreduce": "all-reduce",
    "all_reduce": "all-reduce",
    "allgather": "all-gather",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "all_to_all": "all-to-all",
    "broadcast": "broadcast",
    "send": "point-to-point",
}
"""The beginnings of operators of torch's `c10d` and `_c10d_functional`. What one receives another sends."""
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class Watched(TorchDispatchMode):
    """Counts the collectives that are called while it is entered, by kind: calls and bytes.

    Backward passes are seen too: torch hands the mode to their threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[str, tuple[int, int]] = {}

    @property
    def sent(self) -> tuple[Sent, ...]:
        """By collective, in the order of the first call."""
        return tuple(
            Sent(collective=name, n_calls=n, n_bytes=size)
            for name, (n, size) in self._counts.items()
        )

    def __torch_dispatch__(
        self,
        func: Any,
        _types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Counts the call and carries it out."""
        out = func(*args, **(kwargs or {}))
        if func.namespace in NAMESPACES:
            name = func._schema.name.split("::")[1].lstrip("_")
            kind = next((kind for start, kind in CALLS.items() if name.startswith(start)), None)
            if kind is not None:
                n, size = self._counts.get(kind, (0, 0))
                self._counts[kind] = n + 1, size + _whole_bytes(args, out)
        return out


def _whole_bytes(args: Sequence[Any], out: Any) -> int:
    """The bytes of the larger side: all ranks' parts of a gathering or a scattering."""
    given = list(args)
    if given and isinstance(given[0], list | tuple | Tensor):
        sides = [[each for each in tree_leaves(side) if _is_tensor(each)] for side in given[:2]]
    else:
        sides = []
    sides.append([each for each in tree_leaves(out) if _is_tensor(each)])
    return max((sum(each.nbytes for each in side) for side in sides), default=0)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def sent_by(step: Callable[[], object]) -> tuple[Sent, ...]:
    """The collectives of one step. Compiled blocks run eagerly meanwhile, which changes none of them."""
    with torch.compiler.set_stance("force_eager"), Watched() as watched:
        step()
    return watched.sent


PROFILED_STEPS = 4


def hidden_by(step: Callable[[], object]) -> tuple[float, float]:
    """Seconds a step on a GPU in which kernels of NCCL ran, and those in which no other did: the mean of
    profiled steps that follow one another.

    Operators of the host are left out of the profile: to record them took the host so long that the kernels
    of a step came apart, and of one step of `medium` on two H100s 0.6% was seen to be hidden where others of
    the same job hid 36 to 91%.
    """
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as running:
        for _ in range(PROFILED_STEPS):
            step()
        torch.cuda.synchronize()
    assert running.profiler is not None and running.profiler.kineto_results is not None
    own, others = [], []
    for each in running.profiler.kineto_results.events():
        if not str(each.device_type()).endswith("CUDA") or each.duration_ns() <= 0:
            continue
        if each.is_user_annotation():  # A range such as FSDP::all_gather spans the kernels in it.
            continue
        name, span = each.name(), (each.start_ns(), each.start_ns() + each.duration_ns())
        if name.startswith("ncclDevKernel") or name.startswith("ncclKernel"):
            own.append(span)
        elif not name.startswith(("nccl:", "ProfilerStep", "gpu_user")):
            others.append(span)
    whole_s, exposed_s = exposed(own, others)
    return whole_s / PROFILED_STEPS, exposed_s / PROFILED_STEPS


def exposed(
    own: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]
) -> tuple[float, float]:
    """Seconds that the first spans cover, and those of them that the second leave uncovered; in nanoseconds
    both."""
    covered = list(_merged(own))
    rest = list(_merged([*own, *others]))
    total = sum(end - start for start, end in covered)
    both = sum(end - start for start, end in rest)
    of_others = sum(end - start for start, end in _merged(others))
    return total / 1e9, (both - of_others) / 1e9


def _merged(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    start, end = None, 0
    for begins, ends in sorted(spans):
        if start is None or begins > end:
            if start is not None:
                yield start, end
            start, end = begins, ends
        else:
            end = max(end, ends)
    if start is not None:
        yield start, end
