"""The bytes that each GPU of a ring sends in a collective, and the time that this takes.

After nccl-tests, doc/PERFORMANCE.md (NVIDIA): an all-reduce of S bytes over n GPUs sends
2·(n − 1)/n·S from each, a reduce-scatter or an all-gather half of it.
"""

from peakward.records.measurement import Interval

REACHED = Interval(estimate=0.80, low=0.66, high=1.06, level=0.9)
"""Share of a link's stated rate in one direction that large collectives of one node reach: 200 to 233
of 300 GB/s on eight A100 (nccl-tests issues 149, 175), 370 of 450 on eight H100 by a ring, for its
protocol takes a fifth (issue 212), 475 where the switch adds up all-reduces (issue 272, H200)."""


def all_reduce_bytes(n_bytes: float, n_gpus: int) -> float:
    """Sent by each GPU."""
    return 2 * all_gather_bytes(n_bytes, n_gpus)


def all_gather_bytes(n_bytes: float, n_gpus: int) -> float:
    """Sent by each GPU, where all together hold `n_bytes`; also of a reduce-scatter of as many."""
    return (n_gpus - 1) / n_gpus * n_bytes


def time_s(sent_bytes: float, link_bytes_per_s: float) -> Interval:
    """Time to send so many bytes over a link of that rate in one direction, without latencies."""
    least_s = sent_bytes / link_bytes_per_s
    return Interval(
        estimate=least_s / REACHED.estimate,
        low=least_s / REACHED.high,
        high=least_s / REACHED.low,
        level=REACHED.level,
    )
