"""The mean cross-entropy behind the output layer, by the name of its implementation."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peakward.kernels.ops.cross_entropy.api import cross_entropy_over_logits
from peakward.kernels.ops.linear_cross_entropy.api import linear_cross_entropy

LossFn = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""loss(head, hidden, targets): a scalar, in at least fp32, for hidden (batch, seq_len, d), targets
(batch, seq_len) of int64, and a layer without a bias. A target of -100 does not count."""


def of_torch(head: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    """torch's loss of logits in at least fp32."""
    logits: Tensor = head(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def fused(head: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    """The loss of logits in the type that they have; the backward pass writes their gradient over them."""
    logits: Tensor = head(hidden)
    return cross_entropy_over_logits(
        logits.flatten(0, 1), targets.flatten(), loss_dtype=torch.float32
    )


def with_head(head: nn.Module, hidden: Tensor, targets: Tensor, *, implementation: str) -> Tensor:
    """The loss with the output layer's product in it, so all logits never exist at once.

    Raises:
        ValueError: a head that is not a linear layer; and what `linear_cross_entropy` raises.
    """
    if not isinstance(head, nn.Linear):
        raise ValueError(
            f"loss: expected a linear layer for the head of {implementation}, got "
            f"{type(head).__name__}; of logits that are there take fused"
        )
    return linear_cross_entropy(
        hidden.flatten(0, 1),
        head.weight,
        targets.flatten(),
        implementation=implementation,
        loss_dtype=torch.float32,
    )


IMPLEMENTATIONS: dict[str, LossFn] = {
    "torch": of_torch,
    "fused": fused,
    "chunked": partial(with_head, implementation="chunked"),
    "recomputed": partial(with_head, implementation="recomputed"),
}


def implementation(name: str) -> LossFn:
    """
    Raises:
        ValueError: no such implementation.
    """
    if name not in IMPLEMENTATIONS:
        names = ", ".join(IMPLEMENTATIONS)
        raise ValueError(f"expected an implementation of the loss of {names}, got {name!r}")
    return IMPLEMENTATIONS[name]
