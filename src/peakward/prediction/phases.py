"""The parts of a step: the phases of each pass, and the lengths that its steps cycle through."""

from collections.abc import Callable

from peakward.records.case import OperatorPass, Pass, Workload
from peakward.records.measurement import Phase

PHASES: dict[Pass, tuple[Phase, ...]] = {
    "forward": ("forward",),
    "forward_backward": ("forward", "backward"),
    "train_step": ("forward", "backward", "optimizer"),
    "prefill": ("forward",),
    "decode": ("forward",),
}
"""In the order in which they run."""
OPERATOR_PHASES: dict[OperatorPass, tuple[Phase, ...]] = {
    "forward": ("forward",),
    "backward": ("backward",),
    "forward_backward": ("forward", "backward"),
}


def mean_over_lengths(workload: Workload, cost: Callable[[int], float]) -> float:
    """`cost(seq_len)` averaged over a cycle of the workload's lengths.

    Padding is not what the maths needs, so a batch costs what its own length does, padded or not.
    """
    lengths = workload.varying_seq_lens or (workload.seq_len,)
    return sum(cost(length) for length in lengths) / len(lengths)
