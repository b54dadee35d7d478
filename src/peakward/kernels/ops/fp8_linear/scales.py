"""Delayed scales: a tensor's scale comes from its largest magnitudes at the uses before.

Micikevicius et al. 2022, section 3.3; the recipe is NVIDIA Transformer Engine's DelayedScaling, with a short
window. A scale is the power of two that leaves the largest magnitude of the window some headroom below the
type's largest number. It changes exponents alone, so that a pass that is computed again rounds as the first
did, but for subnormal numbers.
"""

from typing import NamedTuple

import torch
from torch import Tensor

WINDOW = 16
"""Uses that are remembered."""
TICKETS, RUNNING, NEXT, FIRST = 0, 1, 2, 3
"""Places in a history: programs that are done, the largest magnitude that they saw, the place in the window
that is written next, and the window."""
LENGTH = FIRST + WINDOW
LEAST_BITS = (127 - 100) << 23
"""2⁻¹⁰⁰ in fp32: smaller magnitudes count as that, and an empty window too."""
TO_QUARTERS = (1 << 21) - 1
"""Added to the bits of a number above 1.75 times a power of two, it carries into the exponent: both types'
largest numbers are 1.75 times one."""
SHIFT = {torch.float8_e4m3fn: 1 - 8, torch.float8_e5m2: 2 - 15}
"""Headroom over the exponent of the type's largest number, in powers of two. What grows further is cast a
second time, by one program: gradients may grow by 4 between two uses, activations by 2. A bit of headroom
costs one of the 15 powers of two that e4m3 spans, and one of 30 in e5m2."""
FALL = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 16}
"""How many powers of two a scale may be above the one that x itself gives. What fell further, as behind one
outlier, is cast a second time, and the window forgets what was larger. At its end e4m3 still tells the 5
powers of two below the largest magnitude apart from subnormal numbers, e5m2 11; gradients that halve at every
use stay above it."""


class Scales(NamedTuple):
    """The histories of a linear layer's operands, int32 (LENGTH,) on its device.

    Magnitudes are kept as the bits of fp32, whose order is that of integers: a cast of a module's floating
    buffers leaves them alone.
    """

    x: Tensor
    weight: Tensor
    gradient: Tensor
