"""The time of dealing tokens to experts: sorting visits, and moving rows into their order and back.

From torch's sources (`Sort.cpp`, `SortStable.cu`, `TensorTopK.cu` and `Indexing.cu` in
ATen/native/cuda) and the rates of other kernels; none of these was traced.
"""

import math

from peakward.prediction.time import kernels
from peakward.prediction.time.device_model import DeviceModel
from peakward.records.op_graph import Operator

SHORT_SORT = 4096
"""Up to so many elements one block sorts them in place, after a copy and a numbering."""
SHORT_SORT_LAUNCHES = 3.0
RADIX_LAUNCHES = 12.0
"""CUB's, 8 bits of an int64 in each of 8 passes, with the numbering, a histogram, its sums and a
fill. Each pass reads and writes keys and indices."""
TOPK_LAUNCHES = 2.0
"""Launches to choose from a row, and then to bring the choice in order."""
BY_ROWS = ("index_select", "index_add", "scatter")
"""Element by element: each finds the place of its row first."""


def routing(name: str, operator: Operator, on: DeviceModel) -> tuple[float, float] | None:
    """Seconds and launches of one call; None of an operator that is no such."""
    launch_s, moved = on.traffic.launch_s, operator.bytes_read + operator.bytes_written
    if name == "sort":
        return _sort(operator, on)
    if name == "topk":
        return (TOPK_LAUNCHES - 1) * launch_s + on.traffic.time_s(moved), TOPK_LAUNCHES
    if name not in BY_ROWS:
        return None
    elements = math.prod(operator.outputs[0].shape)
    elements_s = launch_s + elements / (on.n_sms * kernels.ELEMENTS_PER_SM_S)
    return max(kernels.SCATTERED * on.traffic.time_s(moved), elements_s), 1.0


def _sort(operator: Operator, on: DeviceModel) -> tuple[float, float]:
    """The time and launches to sort one row."""
    n_launches = RADIX_LAUNCHES
    if operator.inputs[0].shape[-1] <= SHORT_SORT:
        n_launches = SHORT_SORT_LAUNCHES
    a_pass = 2 * operator.bytes_written  # Both results, read and written.
    return n_launches * on.traffic.time_s(a_pass), n_launches
