"""The time of Peakward's own kernels, beyond what those of torch in their place take.

Where a stored result has timed a kernel at what is predicted of it, its step is as sure as any. Of the
others a step's interval is as much wider as their share of it says (`errors_seen`), and its record names
them.
"""

from peakward.hardware.attention_backend import ComputeCapability
from peakward.levers import weights
from peakward.levers.registry import AXES
from peakward.prediction.operators.linear_loss import PRODUCTS
from peakward.prediction.operators.tape import FLOAT
from peakward.prediction.time.attention_kernels import relative_time
from peakward.prediction.time.kernels import Kernel
from peakward.prediction.time.setting import Setting
from peakward.records.calibration import AttentionPass
from peakward.records.op_graph import ITEM_BYTES, Operator

ATTENTION = frozenset(
    {
        "peakward.decode_attention",
        "peakward.flash_attention",
        "peakward.flash_attention_backward",
    }
)
"""At the rates that calibration found for torch's kernels, times what was timed of them beside those
(`attention_kernels`); over a cache nothing was."""
LINEAR_LOSS = frozenset(PRODUCTS)
"""Products at the rates of cuBLAS, between passes over a chunk of logits (`time.linear_loss`)."""
QUANTISED = frozenset(each.operator for each in weights.QUANTISED.values())
"""Products at shares of a copy's rate, which an H100 took by themselves (`time.quantised_products`)."""
_SPEEDS = {name: speed for axis in AXES for name, speed in axis.kernels.items()}
PASSES = {name: Kernel(each.factor, each.n_launches) for name, each in _SPEEDS.items()}
"""Kernels that move their operands once; their axes know how fast."""
TIMED = frozenset(name for name, each in _SPEEDS.items() if each.is_measured)
"""Those that stored results have timed by themselves (`2026-11-2*-h100-kernel-speed-*`)."""
OPERATORS = ATTENTION | LINEAR_LOSS | QUANTISED | PASSES.keys()
"""All that torch calls as one operator."""
NEVER_MEASURED = OPERATORS - TIMED
"""Attention but for what `is_guess` finds timed."""
ATTENTION_LAUNCHES: dict[AttentionPass, float] = {"forward": 2.0, "backward": 3.0}
"""Launches of the kernel for Hopper, whose programs draw tiles from a counter that is cleared first; backward
the terms of each row, the kernel, and dq out of its sums. The portable ones
are one launch forward and three backward, and have no sums; over a cache it is the kernel and what joins
its parts."""
_PASSES_OVER_SUMS = 4
"""dq's sums in fp32: zeros, read and written by at least one block of keys, and read in the end."""


def attention_kernel(operator: Operator, setting: Setting) -> str:
    """Its name in `attention_kernels`."""
    if operator.name == "peakward.decode_attention":
        return "own-decode"
    return "own-hopper" if setting.for_hopper else "own"


def is_guess(operator: Operator, setting: Setting, capability: ComputeCapability) -> bool:
    """Whether no stored result bears out the operator's time. Of the portable attention none does: beside
    cuDNN's it took 1.0 to 1.5 times its time forward, by the length."""
    if operator.name in ATTENTION and setting.for_hopper:
        pass_: AttentionPass = "backward" if operator.name.endswith("_backward") else "forward"
        q, kernel = operator.inputs[0], attention_kernel(operator, setting)
        size = ITEM_BYTES[q.dtype]
        return relative_time(kernel, pass_, q.shape[-1], size, capability) is None
    return operator.name in NEVER_MEASURED


def attention_bytes(operator: Operator) -> int:
    """Bytes that one call moves at least, with its own sums."""
    moved = operator.bytes_read + operator.bytes_written
    if not operator.name.endswith("_backward"):
        return moved
    n_sums = operator.outputs[0].n_elements
    return moved + _PASSES_OVER_SUMS * ITEM_BYTES[FLOAT] * n_sums
