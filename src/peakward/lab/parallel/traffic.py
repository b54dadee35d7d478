"""Counts what a step of this rank sends, how much of that hides behind other work, and how long the rank
itself works."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple

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
Span = tuple[int, int]
"""Begin and end in nanoseconds."""


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


class StepSpans(NamedTuple):
    """Seconds of one profiled step of this rank."""

    step_s: float
    communication_s: float
    """In which collectives ran, waits for other ranks included."""
    exposed_s: float
    """The part of that in which nothing else ran."""


def spans_of(step: Callable[[], object], device: torch.device) -> StepSpans:
    """One profiled step: kernels of NCCL and all others on a GPU; on a CPU what gloo has under way, and the
    operators that call no others. There all between two operators counts as a wait while gloo has something
    under way.

    On a GPU operators are left out of the profile: to record them took the host so long that the kernels of a
    step came apart, and of one step of `medium` on two H100s 0.6% was seen to be hidden where others of the
    same job hid 36 to 91%.
    """
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[activity]) as running:
        begin = time.time_ns()
        step()
        if on_gpu:
            torch.cuda.synchronize()
        end = time.time_ns()
    assert running.profiler is not None and running.profiler.kineto_results is not None
    events = running.profiler.kineto_results.events()
    # gloo tells the end of a collective after those who waited for it have gone on.
    within = (
        [
            (max(begin, each[0]), min(end, each[1]))
            for each in side
            if each[1] > begin and each[0] < end
        ]
        for side in (_on_gpu(events) if on_gpu else _on_cpu(events))
    )
    return StepSpans((end - begin) / 1e9, *exposed(*within))


def _on_gpu(events: Iterable[Any]) -> tuple[list[Span], list[Span]]:
    own, others = [], []
    for each in events:
        if not str(each.device_type()).endswith("CUDA") or each.duration_ns() <= 0:
            continue
        if each.is_user_annotation():  # A range such as FSDP::all_gather spans the kernels in it.
            continue
        if each.name().startswith(("ncclDevKernel", "ncclKernel")):
            own.append(_span(each))
        elif not each.name().startswith(("nccl:", "ProfilerStep", "gpu_user")):
            others.append(_span(each))
    return own, others


def _on_cpu(events: Iterable[Any]) -> tuple[list[Span], list[Span]]:
    own, by_thread = [], defaultdict(list)
    for each in events:
        if each.name().startswith("gloo:"):
            own.append(_span(each))
        elif each.activity_type() == "cpu_op":
            by_thread[each.start_thread_id()].append(each)
    leaves = chain.from_iterable(_leaves(each) for each in by_thread.values())
    return own, [_span(each) for each in leaves if each.name().split("::")[0] not in NAMESPACES]


def _leaves(events: list[Any]) -> Iterator[Any]:
    """The operators of one thread that call no others."""
    events.sort(key=lambda each: (each.start_ns(), -each.duration_ns()))
    for each, after in zip_longest(events, events[1:]):
        if after is None or after.start_ns() >= each.start_ns() + each.duration_ns():
            yield each


def _span(event: Any) -> Span:
    return event.start_ns(), event.start_ns() + event.duration_ns()


def exposed(own: Sequence[Span], others: Sequence[Span]) -> tuple[float, float]:
    """Seconds that the first spans cover, and those of them that the second leave uncovered; in nanoseconds
    both."""
    covered = list(_merged(own))
    rest = list(_merged([*own, *others]))
    total = sum(end - start for start, end in covered)
    both = sum(end - start for start, end in rest)
    of_others = sum(end - start for start, end in _merged(others))
    return total / 1e9, (both - of_others) / 1e9


def _merged(spans: Sequence[Span]) -> Iterator[Span]:
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
