"""When a rank computes, and when it waits: small simulations of one step.

Within a stage two queues run beside each other, kernels that compute and collectives of the data axis,
each in order (`data_pass`). Between stages a rank carries out its order of passes, each once its input
is there (`pipeline_s`); the orders are those of torch.distributed.pipelining.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from peakward.records.layout import Schedule


class Work(NamedTuple):
    """One block, or the embedding or the readout, on its way through a pass."""

    compute_s: float
    gather_s: float = 0.0
    """Gathering its parameters, before it computes. It begins when the work before it does."""
    reduce_s: float = 0.0
    """Reducing its gradients, which begins once it has been computed."""


def data_pass(works: Sequence[Work], lost: float, *, is_backward: bool) -> tuple[float, float]:
    """Seconds of a pass, and the part of them that it waits for collectives or is slowed by them.

    The reductions of a backward pass end after it.

    Args:
        works: in the order in which they run.
        lost: the share of a collective's time that the arithmetic beside it loses.
    """
    done_s = busy_s = reduced_s = 0.0
    sent_s = gathered_s = works[0].gather_s
    for at, work in enumerate(works):
        start_s = max(done_s, gathered_s)
        gather_s = works[at + 1].gather_s if at + 1 < len(works) else 0.0
        if gather_s:
            sent_s = gathered_s = max(sent_s, start_s) + gather_s
        done_s = start_s + work.compute_s + lost * min(work.compute_s, gather_s + reduced_s)
        busy_s, reduced_s = busy_s + work.compute_s, work.reduce_s
        if work.reduce_s:
            sent_s = max(sent_s, done_s) + work.reduce_s
    end_s = max(done_s, sent_s) if is_backward else done_s
    return end_s, end_s - busy_s


def buckets(works: Sequence[Work], n_bytes: Sequence[int], bucket_bytes: float) -> list[Work]:
    """The same works with gradients reduced in buckets: the one that fills a bucket sends it.

    Args:
        works: of a backward pass; `reduce_s` is what each would take by itself.
        n_bytes: the gradients of each.
    """
    found, waiting_s, held = [], 0.0, 0
    for at, (work, size) in enumerate(zip(works, n_bytes, strict=True)):
        waiting_s, held = waiting_s + work.reduce_s, held + size
        if held >= bucket_bytes or at == len(works) - 1:
            found.append(work._replace(reduce_s=waiting_s))
            waiting_s, held = 0.0, 0
        else:
            found.append(work._replace(reduce_s=0.0))
    return found


class StageSeconds(NamedTuple):
    """One stage's passes of one micro-batch."""

    forward_s: float
    backward_s: float


def pipeline_s(
    stages: tuple[StageSeconds, ...],
    pp: int,
    n_micro_batches: int,
    schedule: Schedule,
    hop_s: float,
) -> float:
    """Seconds until the last rank has ended its last backward pass.

    Of many micro-batches three rounds of as many as ranks are simulated; each further one takes as long as
    the third. Where stages are uneven the second takes less, as it begins in the bubble of the first; where
    they are interleaved the third may too, and then a round takes what the busiest rank computes in it.

    Args:
        stages: from the first to the last; rank r has r, r + pp, ….
        hop_s: what an activation or its gradient takes to the next stage. torch waits for it between passes.
    """
    n = n_micro_batches
    if schedule == "gpipe" or n <= 3 * pp or n % pp:
        return _simulated_s(stages, pp, n, schedule, hop_s)
    two_s, three_s = (_simulated_s(stages, pp, rounds * pp, schedule, hop_s) for rounds in (2, 3))
    busy_s = pp * max(sum(map(sum, stages[rank::pp])) for rank in range(pp))
    return three_s + (n // pp - 3) * max(three_s - two_s, busy_s)


@lru_cache(maxsize=4096)
def _simulated_s(
    stages: tuple[StageSeconds, ...], pp: int, n: int, schedule: Schedule, hop_s: float
) -> float:
    n_stages = len(stages)
    orders = _orders(pp, n_stages // pp, n, schedule)
    forward_s: list[list[float | None]] = [[None] * n for _ in stages]
    backward_s: list[list[float | None]] = [[None] * n for _ in stages]
    at, free_s, left = [0] * pp, [0.0] * pp, sum(map(len, orders))
    while left:
        for rank, own in enumerate(orders):
            while at[rank] < len(own):
                is_forward, stage, micro = own[at[rank]]
                if is_forward:
                    ready = 0.0 if stage == 0 else forward_s[stage - 1][micro]
                elif stage == n_stages - 1:
                    ready = forward_s[stage][micro]
                else:
                    ready = backward_s[stage + 1][micro]
                if ready is None:
                    break
                # Nothing is sent to the first stage in forward, nor to the last in backward.
                travels = stage > 0 if is_forward else stage < n_stages - 1
                begun_s = max(free_s[rank], ready) + (hop_s if travels else 0.0)
                free_s[rank] = begun_s + stages[stage][0 if is_forward else 1]
                (forward_s if is_forward else backward_s)[stage][micro] = free_s[rank]
                at[rank] += 1
                left -= 1
    return max(free_s)


Pass = tuple[bool, int, int]
"""Whether forward, the stage, the micro-batch."""


@lru_cache(maxsize=256)
def _orders(pp: int, per_rank: int, n: int, schedule: Schedule) -> list[list[Pass]]:
    return [order(rank, pp, per_rank, n, schedule) for rank in range(pp)]


def order(rank: int, pp: int, per_rank: int, n: int, schedule: Schedule) -> list[Pass]:
    """The passes of a rank, in torch's order: all forward ones first, or after some of them one of each in
    turn. With several stages a rank, micro-batches go through each stage in rounds of as many as ranks."""
    total = per_rank * n
    in_round = _in_round(pp, n) if per_rank > 1 else n

    def chunk(at: int, *, is_forward: bool) -> Pass:
        which = (at // in_round) % per_rank
        round_, micro = at // (in_round * per_rank), at % in_round
        local = which if is_forward else per_rank - 1 - which
        return is_forward, local * pp + rank, round_ * in_round + micro

    warmup = n_under_way(rank, pp, per_rank, n, schedule)
    found = [chunk(at, is_forward=True) for at in range(warmup)]
    for at in range(total):
        found.append(chunk(at, is_forward=False))
        if warmup + at < total:
            found.append(chunk(warmup + at, is_forward=True))
    return found


def n_under_way(rank: int, pp: int, per_rank: int, n: int, schedule: Schedule) -> int:
    """Forward passes before the first backward one: the most whose activations a rank holds at once."""
    if schedule == "gpipe":
        return per_rank * n
    if per_rank == 1:
        return min(n, pp - rank)
    return min(per_rank * n, (per_rank - 1) * _in_round(pp, n) + 2 * (pp - 1 - rank) + 1)


def _in_round(pp: int, n: int) -> int:
    """Micro-batches that go through each stage of a rank before its next stage has its turn."""
    return n // max(1, n // pp)
