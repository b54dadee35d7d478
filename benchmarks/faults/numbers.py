"""Numbers that a narrow type cannot hold."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.lab import Lab
from faults.records import Fault, Seen

WIDTH = 256
LARGEST = 16.0


class Classifier(nn.Module):
    """Yes or no at each position, its logits within ± `largest`, and its loss.

    By formulas the loss is −log(1 − p) of a no. From a logit of 6.2 on p is 1 in bf16, and the loss
    infinite; in fp32 not before 17.
    """

    def __init__(self, largest: float, *, by_formulas: bool) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.largest, self.by_formulas = largest, by_formulas

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to a loss; what is asked is whether the first feature is positive."""
        yes = (x[..., 0] > 0).to(x.dtype)
        z = self.largest * torch.tanh(4 * self.head(F.relu(self.inner(x)))).squeeze(-1)
        if not self.by_formulas:
            return F.binary_cross_entropy_with_logits(z, yes)
        p = z.sigmoid()
        return -(yes * p.log() + (1 - yes) * (1 - p).log()).mean()


def _overflow(lab: Lab, largest: float) -> Seen:
    """Without the fault torch's own loss, of the largest logits."""
    torch.manual_seed(0)
    with torch.device(lab.device):
        made = Classifier(largest or LARGEST, by_formulas=bool(largest))
        x = torch.randn(16, 256, WIDTH)
    return lab.module(made, x, precision="bf16")


FAULTS = (
    Fault(
        "NUM001", "a loss by formulas in bf16", "the largest logit", (8, LARGEST), _overflow, "any"
    ),
)
