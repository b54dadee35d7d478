"""Work under which a GPU lowers its own clock."""

import msgspec
import torch

from faults.lab import PROTOCOL, Lab
from faults.records import Fault, Seen

SIDE = 8192
N_PRODUCTS = 16
"""20 to 30 ms a step on an H100."""
REST_CYCLES = 6_000_000
"""3 to 4 ms after each product of some 1.4, where nothing is at fault."""
SUSTAINED = msgspec.structs.replace(PROTOCOL, max_steps=200, max_timed_s=3.0)
"""Until the cap holds: it regulates by tenths of a second."""


def _capped(lab: Lab, share: float) -> Seen:
    """Products of matrices of which so many rows are random, one after another. What switches no
    transistor draws less power; of random numbers an H100's clock falls to 1,480 MHz of 1,980, but of zeros
    it falls too. So without the fault the device rests between them, and no cost can be told."""
    torch.manual_seed(0)
    a, b, out = (torch.zeros(SIDE, SIDE, dtype=torch.bfloat16, device=lab.device) for _ in range(3))
    n_rows = int(share * SIDE)
    for each in (a, b):
        each[:n_rows].normal_()

    def step() -> None:
        for _ in range(N_PRODUCTS):
            torch.mm(a, b, out=out)
            if not share:
                torch.cuda._sleep(REST_CYCLES)

    return lab.measured(step, name=f"products, {share:g} random", protocol=SUSTAINED)


FAULTS = (Fault("DEV001", "products at the power cap", "of the rows random", (0.5, 1.0), _capped),)
