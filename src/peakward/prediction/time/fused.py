"""The time of a kernel that Inductor makes of several operators, from the bytes that it moves.

Factors are over a plain addition of the same bytes, as in `kernels`. Found in traces of two train
steps on an H200 (torch 2.11, Triton 3.6: `small` and `2.7B` in bf16 with fused attention, 4 × 512),
each kernel's duration with the 0.9 µs that lay between it and the next. Of fp32 and of autocast there
is no trace: theirs are taken to be as far from their traffic.

- Elementwise kernels: 0.94 to 1.17 from 13 to 126 MB; a copy into another layout 1.29 and 1.44.
- Joining parts (`cat`): each part's branch is run for every element, and loads but for its own nothing.
- Reductions along rows that fit a block's registers 0.98 to 1.37, those that loop over a row twice
  1.23 to 1.70; across rows, in two steps, 2.1 to 2.7 and then 3.2 to 3.7 µs.
"""

from typing import NamedTuple

from peakward.prediction.time.device_model import DeviceModel
from peakward.records.op_graph import Operator

TRANSPOSED = 1.4
"""A copy of heads side by side."""
LONGEST_PERSISTENT_ROW = 1024
"""Inductor keeps no more elements of a row in registers (`codegen/triton.py`)."""
PERSISTENT, LOOPED = 1.15, 1.45
MIXED = 1.8
"""Sums along rows and across them in one kernel: 0.55 of the bandwidth for 4096 rows of 8192 on a
GB200, by a maintainer's figures (PyTorch issue 185534); none was traced here."""
OUTER = 2.5
OUTER_FINISH_S = 1.4e-6
"""On top of a launch."""
SINGLE_BLOCK_S = 3e-6
"""On top of a launch: the sum over all positions of the loss, 3.9 and 4.4 µs for 2048 of them."""


class _Rate(NamedTuple):
    """The rate that bounds a kernel beside its bytes."""

    name: str
    """An operator in it; the first that is found counts."""
    elements_per_sm_s: float


_RATES = (
    _Rate("aten.silu_backward", 470e9 / 132),  # 500 and 444 · 10⁹ a second, of the joined halves.
    _Rate("aten.cat", 360e9 / 132),  # RoPE, by pairs, 268 and 368, its gradient 409 and 345.
    _Rate("aten._log_softmax_backward_data", 650e9 / 132),  # 697 and 622, rows of 10,000.
    _Rate("aten._log_softmax", 535e9 / 132),  # 562 and 510: its exponentials.
)
"""Beside a launch."""


def fused_s(operator: Operator, on: DeviceModel) -> float:
    """Seconds of one call, from its launch to the next."""
    moved_s = on.traffic.time_s(operator.bytes_read + operator.bytes_written)
    return max(_factor(operator) * moved_s, _elements_s(operator, on)) + _start_s(operator)


def _factor(operator: Operator) -> float:
    if operator.name == "inductor.pointwise":
        return TRANSPOSED if _joins_heads(operator) else 1.0
    if operator.name == "inductor.outer_reduction":
        return OUTER
    if _mixed(operator):
        return MIXED
    return PERSISTENT if _row(operator) <= LONGEST_PERSISTENT_ROW else LOOPED


def _joins_heads(operator: Operator) -> bool:
    """Gradients of queries, keys and values, which go side by side."""
    rows = len(operator.outputs[0].shape) == 3
    return "aten.clone" in operator.fused and operator.phase == "backward" and rows


def _mixed(operator: Operator) -> bool:
    """It also gives sums across rows."""
    return "aten._fused_rms_norm_backward" in operator.fused and any(
        len(each.shape) == 2 and each.dtype == "float32" for each in operator.outputs
    )


def _row(operator: Operator) -> int:
    return max(each.shape[-1] for each in operator.inputs if each.shape)


def _elements_s(operator: Operator, on: DeviceModel) -> float:
    rate = next((each for each in _RATES if each.name in operator.fused), None)
    joins_only = operator.fused == ("aten.cat", "aten.clone")
    if rate is None or joins_only or "aten.nll_loss_forward" in operator.fused:
        return 0.0
    given = operator.outputs if operator.name == "inductor.pointwise" else operator.inputs
    elements = max(each.n_elements for each in given)
    return on.traffic.launch_s + elements / (on.n_sms * rate.elements_per_sm_s)


def _start_s(operator: Operator) -> float:
    if "aten.nll_loss_forward" in operator.fused:
        return SINGLE_BLOCK_S
    finishes = operator.name == "inductor.outer_reduction" and len(operator.inputs) == 1
    return OUTER_FINISH_S if finishes else 0.0
