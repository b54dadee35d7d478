"""How much slower than a plain addition torch's own kernels move the same bytes on a GPU.

Found in traces of ten train steps on an H200 (torch 2.11: five sizes and GPT-2, fp32, tf32, bf16
and bf16-mixed, naive and fused attention), as time over what the calibration's additions take for
the bytes of the operator. Two kinds of kernel were told apart:

- vectorised: all operands alike and without gaps. At a factor of 1 within 10% from 4 to 400 MB;
- element by element: where layouts differ, something is broadcast, or a value is widened. It needs
  at least its own time per element, 350 · 10⁹ elements/s on an H200's 132 multiprocessors,
  whatever the type, and SCATTERED times a plain addition's.

What scales with a device's multiprocessors is given per multiprocessor.
"""

from typing import NamedTuple

SCATTERED = 1.65
"""silu over one half of a row 1.72, silu's gradient 1.64 to 1.80, negation of a half 1.63, a
masked fill 1.64, a copy into another layout 1.77."""
WIDENING = 1.5
"""Additions of fp32 and bf16: 1.5 to 1.6."""
ELEMENTS_PER_SM_S = 350e9 / 132
"""silu 356, masked fill 356, copy into another layout 357, widening copy 340 to 350 · 10⁹ a second."""
WIDENED_ELEMENTS_PER_SM_S = 165e9 / 132
"""A product of a bf16 half and an fp32 table: 155 to 165 · 10⁹ a second."""
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
    "native_layer_norm": Kernel(1.5),
    "native_layer_norm_backward": Kernel(2.7, 2, 1.5e-6),
    "_softmax": Kernel(1.2),
    "_safe_softmax": Kernel(1.2),
    "_softmax_backward_data": Kernel(2.0, 2),
    "_log_softmax": Kernel(1.45),
    "_log_softmax_backward_data": Kernel(1.1),
    "nll_loss_backward": Kernel(2.0, 2),
    "gelu_backward": Kernel(1.3),
    "_to_copy": Kernel(1.05),
    "cat": Kernel(1.07),
    "sum": Kernel(1.0, 2, 9e-6),
    "_fused_adamw_": Kernel(1.55),
    "peakward.adamw": Kernel(1.05),
}
"""Backward of softmax: a product and the kernel itself, each at a plain one's time. A norm's gradient
is two kernels, of which the second sums over rows; so is a bias's, which took 11 to 13 µs whatever
its size from 2 to 17 MB."""
LONG_ROW = 12_000
"""Elements of a log-softmax's row; a longer one does not stay on the multiprocessor and is read again."""
LONG_ROW_FACTORS = {"_log_softmax": 1.95, "_log_softmax_backward_data": 1.55}
"""At GPT-2's 50,257."""
FOREACH = {4: 1.15, 2: 1.35}
"""By bytes of an element: 3.6 to 3.9 TB/s in fp32, 3.1 in bf16."""
FOREACH_TENSORS_A_LAUNCH = 36
PRODUCT_LAUNCHES = 1.4
"""cuBLAS clears a counter before about every second of its products."""
ATTENTION_LAUNCHES = {"forward": 2.0, "backward": 4.0}
"""cuDNN's."""
