"""Reading a working set from end to end, again and again."""

from torch import Tensor


def sweep(values: Tensor, n_sweeps: int) -> Tensor:
    """The sum of all values read: fp32 of one dimension, each read `n_sweeps` times, to a scalar."""
    return n_sweeps * values.sum()
