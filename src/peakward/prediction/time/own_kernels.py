"""The time of Peakward's own kernels, beyond what those of torch in their place take.

Where a stored result has timed a kernel at what is predicted of it, its step is as sure as any. Of the
others a step's interval is as much wider as their share of it says (`errors_seen`), and its record names
them.
"""

from peakward.prediction.operators.attention_backend import ComputeCapability
from peakward.prediction.operators.linear_loss import PRODUCTS
from peakward.prediction.operators.tape import FLOAT
from peakward.prediction.time.attention_kernels import relative_time
from peakward.prediction.time.kernels import Kernel
from peakward.prediction.time.setting import Setting
from peakward.records.op_graph import ITEM_BYTES, Operator
from peakward.records.rates import AttentionPass

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
QUANTISED = frozenset({"peakward.int4_matmul", "peakward.int8_matmul"})
"""Products at shares of a copy's rate, which an H100 took by themselves (`time.quantised_products`)."""
PASSES: dict[str, Kernel] = {
    "peakward.add_layer_norm": Kernel(1.0),
    "peakward.add_layer_norm_backward": Kernel(1.08, 2),
    "peakward.add_rms_norm": Kernel(1.0),
    "peakward.add_rms_norm_backward": Kernel(1.08, 2),
    "peakward.linear_cross_entropy_chunked_backward": Kernel(1.0, 2),
    "peakward.rope": Kernel(1.0),
    "peakward.rope_": Kernel(1.0),
    "peakward.swiglu": Kernel(1.0),
    "peakward.swiglu_backward": Kernel(1.0),
    "peakward.cross_entropy_over_logits": Kernel(1.0, 2),
    "peakward.cross_entropy_backward_over_logits": Kernel(1.0),
}
"""Kernels that move their operands once, as fast as an addition does; the loss's mean is a launch. A
norm's gradients by themselves reach 0.90 to 0.99 of a copy (`2026-11-23-h100-kernel-speed-rms_norm`,
`…-wide`); those of its parameters are summed by another launch."""
TIMED = frozenset(
    {
        "peakward.add_layer_norm",
        "peakward.add_layer_norm_backward",
        "peakward.add_rms_norm",
        "peakward.add_rms_norm_backward",
        "peakward.cross_entropy_backward_over_logits",
        "peakward.rope",
        "peakward.rope_",
        "peakward.swiglu",
        "peakward.swiglu_backward",
    }
)
"""By themselves on an H100 within 15% of what is predicted, from 150 MiB of traffic on
(`2026-11-2*-h100-kernel-speed-*`). The loss's forward pass is not: of 8,192 tokens
over 10,000 logits it takes 1.30 times it, of 2,048 over 50,257 1.26."""
OPERATORS = ATTENTION | LINEAR_LOSS | QUANTISED | PASSES.keys()
"""All that torch calls as one operator."""
NEVER_MEASURED = OPERATORS - TIMED
"""Attention but for what `is_guess` finds timed."""
ATTENTION_LAUNCHES: dict[AttentionPass, float] = {"forward": 2.0, "backward": 3.0}
"""Of the kernel for Hopper, whose programs draw tiles from a counter that is cleared first; backward
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
    """What one call moves at least, the sums of its own included."""
    moved = operator.bytes_read + operator.bytes_written
    if not operator.name.endswith("_backward"):
        return moved
    n_sums = operator.outputs[0].n_elements
    return moved + _PASSES_OVER_SUMS * ITEM_BYTES[FLOAT] * n_sums
