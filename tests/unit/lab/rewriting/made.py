"""Shared by the tests of replaced parts: a step's numbers, and a module with a part replaced."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from peakward.lab.rewriting import rewriting
from peakward.lab.rewriting.attention import Replaced

from .subjects import VOCAB

TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-5}
"""Bounds for losses and gradients near 1: some hundred roundings."""


def ids(batch: int = 2, length: int = 12) -> Tensor:
    """Token ids, (batch, length)."""
    return torch.randint(VOCAB, (batch, length))


def step(model: nn.Module, *args: Tensor | None) -> dict[str, Tensor]:
    """The loss, which is the second of the module's results, and every gradient by name."""
    model.zero_grad()
    loss = model(*args)[1]
    loss.backward()
    grads = {name: each.grad.clone() for name, each in model.named_parameters()}
    return {"loss": loss.detach(), **grads}


def replaced(
    model: nn.Module, *args: Tensor | None, part: str = "attention", by: str = "sdpa"
) -> tuple[Callable[[], None], set[str]]:
    """Replace a part; returns what takes it back, and what was replaced."""
    undo = rewriting.replace_part(model, part, by)
    rewriting.settle(model, lambda: model(*args))
    outcomes = rewriting.of(model).outcomes[part]
    return undo, {each.what for each in outcomes if isinstance(each, Replaced)}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Within the roundings of the type, each by its name."""
    bounds = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    for name, each in expected.items():
        torch.testing.assert_close(found[name], each, msg=lambda m, n=name: f"{n}: {m}", **bounds)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert all(torch.equal(found[name], each) for name, each in expected.items())
