"""How kernels compare with those that a calibration timed: torch's, attention's, and Peakward's own."""

from typing import NamedTuple

from peakward.hardware.attention_backend import ComputeCapability
from peakward.levers import weights
from peakward.levers.registry import AXES
from peakward.prediction.operators.linear_loss import PRODUCTS
from peakward.prediction.operators.tape import FLOAT
from peakward.prediction.time.setting import Setting
from peakward.records.calibration import AttentionPass
from peakward.records.op_graph import ITEM_BYTES, Operator

# How much slower than a plain addition torch's own kernels move the same bytes on a GPU.
#
# Found in traces of ten train steps on an H200 (torch 2.11: five sizes and GPT-2, fp32, tf32, bf16
# and bf16-mixed, naive and fused attention), as time over what the calibration's additions take for
# the bytes of the operator. Two kinds of kernel were told apart:
#
# - vectorised: all operands alike and without gaps. At a factor of 1 within 10% from 4 to 400 MB;
# - element by element: where layouts differ, something is broadcast, or a value is widened. It needs
#   at least its own time per element, 350 · 10⁹ elements/s on an H200's 132 multiprocessors,
#   whatever the type, and SCATTERED times a plain addition's.
#
# What scales with a device's multiprocessors is given per multiprocessor.

SCATTERED = 1.65
"""silu over one half of a row 1.72, silu's gradient 1.64 to 1.80, negation of a half 1.63, a
masked fill 1.64, a copy into another layout 1.77."""
WIDENING = 1.5
"""Additions of fp32 and bf16: 1.5 to 1.6."""
ELEMENTS_PER_SM_S = 350e9 / 132
"""silu 356, masked fill 356, copy into another layout 357, widening copy 340 to 350 · 10⁹ a second."""
WIDENED_ELEMENTS_PER_SM_S = 165e9 / 132
"""A product of a bf16 half and an fp32 table: 155 to 165 · 10⁹ a second."""
FLAGS_PER_SM_S = 900e9 / 132
"""Flags of rows that are asked whether all are set: 8.4 million, 512 a row, took 9.4 µs on an H200, by their
bytes 4."""
JOINED_ELEMENTS_PER_SM_S = 225e9 / 132
"""Elements of the result of joining short rows, or parts of different layouts: 216 to 242 · 10⁹ a second."""


class Kernel(NamedTuple):
    """The kernel of one operator."""

    factor: float
    """Time over a plain addition's of the same bytes."""
    n_launches: float = 1.0
    start_s: float = 0.0
    """On top, however little it moves."""


KERNELS: dict[str, Kernel] = {
    "_fused_rms_norm": Kernel(1.1),
    "_fused_rms_norm_backward": Kernel(2.7, 2, 1.5e-6),
    "native_layer_norm": Kernel(1.5, 1, 2.5e-6),
    "native_layer_norm_backward": Kernel(2.7, 2, 1.5e-6),
    "_softmax": Kernel(1.2),
    "_softmax_backward_data": Kernel(2.0, 2),
    "_log_softmax": Kernel(1.45),
    "_log_softmax_backward_data": Kernel(1.1),
    "gelu_backward": Kernel(1.3),
    "native_dropout": Kernel(1.6),
    "native_dropout_backward": Kernel(1.0),
    "_to_copy": Kernel(1.05),
    "cat": Kernel(1.07),
    "sum": Kernel(1.0, 2, 9e-6),
    "_fused_adamw_": Kernel(1.55),
    "peakward.adamw": Kernel(1.05),
    "peakward.cache_write": Kernel(1.0),
}
"""Backward of softmax: a product and the kernel itself, each at a plain one's time. A norm's gradient
is two kernels, of which the second sums over rows; so is a bias's, which took 11 to 13 µs whatever
its size from 2 to 17 MB. A layer norm took 6 to 16 µs for 4 to 34 MB, 2 to 3 more than 1.5 times an addition;
dropout of 4.2 million elements 8.8 µs forward, for it draws them, and 5.1 backward."""
CALLS_WITHIN = {
    "aten._safe_softmax": 5,
    "aten.baddbmm": 2,
    "aten._index_put_impl_": 7,
    "aten.repeat": 5,
    "aten.stack": 2,
}
"""Operators that torch carries out by so many others, which no record of a step shows. Of the first: a
softmax, which scores are minus infinity, whether all of a row are, a constant, and zeros for such rows
(ATen/native/transformers/attention.cpp). Of the second: a copy of what is added into the result, and the
product that adds to it (`common_checks_baddbmm_bmm` in ATen/native/LinearAlgebra.cpp). Of the third, the
gradient of indexing: three make the places, two tensors take them and their order, and what sorts and what
adds count as one each (ATen/native/cuda/Indexing.cu). Of the others by the host's time: in seven traces of an
H200 operators took 1.45 additions on average, `repeat`, which unfolds the result once for each dimension and
copies into it, 6.6, and `stack` 2.9."""
LONG_ROW = 12_000
"""Elements of a log-softmax's row; a longer one does not stay on the multiprocessor and is read again."""
LONG_ROW_FACTORS = {"_log_softmax": 2.05, "_log_softmax_backward_data": 1.55}
"""At GPT-2's 50,257 the first took 1.95, at 49,152 to 50,400 2.1."""
FOREACH = {4: 1.15, 2: 1.2}
"""By bytes of an element: 3.6 to 3.9 TB/s in fp32, and 3.5 to 3.6 in bf16 where an element is six bytes and
more. In six traces of an H200 all of an optimizer's took 3% to 6% more, with what lies between launches."""
FOREACH_ELEMENTS_PER_SM_S = 700e9 / 132
"""The most elements a second, however few their bytes: of four bytes, as a product in bf16 has, 645 to 745 ·
10⁹ of an H200."""
FOREACH_TENSORS_A_LAUNCH = 36
FOREACH_BLOCK, FOREACH_BLOCKS_A_LAUNCH = 65_536, 320
"""Elements that a block takes, and blocks that a launch has (`MultiTensorApply.cuh`): one of bf16 takes an
H200 some 32 µs, and an optimizer of 2.9 billion parameters has 1,100, more than the queue."""
PRODUCT_LAUNCHES = 1.4
"""cuBLAS clears a counter before about every second of its products."""
ATTENTION_LAUNCHES = {"forward": 2.0, "backward": 4.0}
"""cuDNN's."""


# How long each kernel of attention takes beside the one that a calibration timed.
#
# A calibration has one head dimension, 64, and torch's own choice of kernel, cuDNN's on Hopper. By itself
# each other kernel, and each other head dimension, took nearly the same multiple of its time from 512 to
# 16,384 causal tokens: bf16, an H100, `2026-11-22-h100-kernel-speed-flash_attention` and `…-backward`.

TIMES: dict[str, dict[AttentionPass, dict[int, float]]] = {
    "cudnn": {
        "forward": {64: 1.00, 80: 1.13, 96: 0.99, 128: 0.76},
        "backward": {64: 1.00, 80: 1.11, 96: 0.98, 128: 0.80},
    },
    "flash": {
        "forward": {64: 1.58, 80: 1.75, 96: 1.39, 128: 1.44},
        "backward": {64: 1.60, 80: 2.00, 96: 1.67, 128: 1.46},
    },
    "own": {
        "forward": {64: 1.22, 80: 1.13, 96: 1.09, 128: 0.97},
        "backward": {64: 1.08, 80: 1.16, 96: 1.04, 128: 0.93},
    },
    "own-hopper": {
        "forward": {64: 0.97, 80: 0.89, 96: 0.78, 128: 0.68},
        "backward": {64: 0.85, 80: 0.91, 96: 0.90, 128: 0.79},
    },
}
"""Medians over the lengths. Single lengths lie within 10% of them, but at 512 (up to 1.24 times), for the
flash kernel of 64 at 1,000 (1.43), for Peakward's portable one of 64 (0.83 to 1.19) and for that for
Hopper of 64 at 16,384 (0.88)."""
HOPPER = 9
TIMED_ITEM_BYTES = 2


class Block(NamedTuple):
    """The part of the queries (backward: of the keys) that one block of threads takes."""

    rows: int
    at_once: int
    """Blocks that share a multiprocessor, each of which may see all keys."""


ATTENTION_BLOCKS = {"cudnn": Block(128, 1), "efficient": Block(64, 2)}
"""A causal call ends with the blocks that see all keys, and few heads have no other work to hide them. cuDNN
draws the longest first. In traces of an H200 8 heads of 2,048 × 128 in bf16 took 32 µs, told 21 without this
and 27 with it; 16 heads of 1,024 × 64 in fp32 took 146, told 90 and 123; backward 312, told 212 and 302."""
DROPPED_PER_SM_S = 640e9 / 132
"""Scores whose dropout a fused kernel draws in a second: 16.8 million of them took 28 µs more forward and 24
backward (cuDNN, H200)."""


def relative_time(
    kernel: str, pass_: AttentionPass, head_dim: int, item_bytes: int, capability: ComputeCapability
) -> float | None:
    """Over that of what was calibrated, of as many FLOPs; None where nothing was timed.

    A head dimension between those of the table is taken for the next, to which kernels pad it.
    """
    known = TIMES.get(kernel)
    if known is None or capability[0] != HOPPER or item_bytes != TIMED_ITEM_BYTES:
        return None
    wider = [each for each in known[pass_] if each >= head_dim]
    return known[pass_][min(wider)] if wider else None


# The time of Peakward's own kernels, beyond what those of torch in their place take.
#
# Where a stored result has timed a kernel at what is predicted of it, its step is as sure as any. Of the
# others a step's interval is as much wider as their share of it says (`errors_seen`), and its record names
# them.

_TO_CACHE = "peakward.decode_attention"
ATTENTION = frozenset(
    {
        _TO_CACHE,
        "peakward.flash_attention",
        "peakward.flash_attention_backward",
    }
)
"""At the rates that calibration found for torch's kernels, times what was timed of them beside those
(`attention_kernels`); over a cache at a share of the copy's rate."""
LINEAR_LOSS = frozenset(PRODUCTS)
"""Products at the rates of cuBLAS, between passes over a chunk of logits (`time.special_operators`)."""
QUANTISED = frozenset(each.operator for each in weights.QUANTISED.values())
"""Products at rates that an H200 had in steps (`time.special_operators`)."""
MOST_ROWS_ON_BOTH = 16
"""The most rows of them that calls on an H100 bear out too (`time.special_operators`)."""
_SPEEDS = {name: speed for axis in AXES for name, speed in axis.kernels.items()}
PASSES = {
    name: Kernel(each.factor, each.n_launches, each.start_s) for name, each in _SPEEDS.items()
}
"""Kernels that move their operands once; their axes know how fast."""
TIMED = frozenset(name for name, each in _SPEEDS.items() if each.is_measured)
"""Those that stored results have timed by themselves (`2026-11-2*-h100-kernel-speed-*`)."""
OPERATORS = ATTENTION | LINEAR_LOSS | QUANTISED | PASSES.keys()
"""All that torch calls as one operator."""
NEVER_MEASURED = OPERATORS - TIMED
"""Attention and quantised products but for what `is_guess` finds timed."""
OWN_ATTENTION_LAUNCHES: dict[AttentionPass, float] = {"forward": 2.0, "backward": 3.0}
"""Launches of the kernel for Hopper, whose programs draw tiles from a counter that is cleared first; backward
the terms of each row, the kernel, and dq out of its sums. The portable ones
are one launch forward and three backward, and have no sums; over a cache it is the kernel and what joins
its parts."""
_PASSES_OVER_SUMS = 4
"""dq's sums in fp32: zeros, read and written by at least one block of keys, and read in the end."""


CACHE_SHARES: dict[str, dict[int, float]] = {
    "bfloat16": {64: 0.96, 80: 0.81, 96: 0.94, 128: 0.98, 256: 0.96},
    "int8": {80: 0.57, 128: 0.88},
    "float8_e4m3fn": {80: 0.42},
}
"""The share of the copy's rate at which one new token of a sequence reads a cache, by its type and the size
of its heads: `2026-11-23-h100-kernel-speed-decode_attention` and, on an H200, of 80 and 128
`2026-11-28-h200-kernel-trials-narrow-caches`; of fp8 by what 16 sequences' step takes more than one's
(`2026-11-29-h200-bench-decode-caches`), which of bf16 and int8 gives what was timed alone."""


def cache_share(operator: Operator, capability: ComputeCapability) -> float | None:
    """Reading a cache, over the copy's rate; None of other operators, and where no heads were timed that the
    kernel pads to the same power of two."""
    if operator.name != _TO_CACHE or capability[0] != HOPPER:
        return None
    held = operator.inputs[1]
    size, known = held.shape[-1], CACHE_SHARES.get(held.dtype, {})
    alike = [each for each in known if each >= size and _padded(each) == _padded(size)]
    return known[min(alike)] if alike else None


def _padded(size: int) -> int:
    return 1 << (size - 1).bit_length()


def attention_kernel(operator: Operator, setting: Setting) -> str:
    """Its name in `attention_kernels`."""
    if operator.name == _TO_CACHE:
        return "own-decode"
    return "own-hopper" if setting.for_hopper else "own"


def is_guess(operator: Operator, setting: Setting, capability: ComputeCapability) -> bool:
    """Whether no stored result bears out the operator's time. Of the portable attention none does: beside
    cuDNN's it took 1.0 to 1.5 times its time forward, by the length."""
    if operator.name == _TO_CACHE:
        return cache_share(operator, capability) is None
    if operator.name in ATTENTION and setting.for_hopper:
        pass_: AttentionPass = "backward" if operator.name.endswith("_backward") else "forward"
        q, kernel = operator.inputs[0], attention_kernel(operator, setting)
        size = ITEM_BYTES[q.dtype]
        return relative_time(kernel, pass_, q.shape[-1], size, capability) is None
    if operator.name in QUANTISED:
        x = operator.inputs[0]
        n_rows = x.n_elements // x.shape[-1]
        return capability[0] != HOPPER or n_rows > MOST_ROWS_ON_BOTH
    return operator.name in NEVER_MEASURED or (setting.fusion_is_derived and bool(operator.fused))


def attention_bytes(operator: Operator) -> int:
    """Bytes that one call moves at least, with its own sums."""
    moved = operator.bytes_read + operator.bytes_written
    if not operator.name.endswith("_backward"):
        return moved
    n_sums = operator.outputs[0].n_elements
    return moved + _PASSES_OVER_SUMS * ITEM_BYTES[FLOAT] * n_sums
