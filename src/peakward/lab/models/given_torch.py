"""Checks what a caller gave of torch's: a module, an optimizer, a device, inputs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from peakward.records import check
from peakward.records.errors import PeakwardError, quoted


def expect_live(model: object, optimizer: object) -> None:
    """Refuse what is neither a module nor an optimizer, where one is given.

    Raises:
        PeakwardError: it is another thing.
    """
    if not isinstance(model, nn.Module | None):
        raise PeakwardError(
            f"expected a torch.nn.Module for model, got {quoted(model)}: give the module itself"
        )
    if not isinstance(optimizer, torch.optim.Optimizer | None):
        raise PeakwardError(
            f"expected a torch.optim.Optimizer for optimizer, got {quoted(optimizer)}: give the one that "
            "steps, or leave it out"
        )


def expect_module(given: object) -> nn.Module:
    """The module, where it is one.

    Raises:
        PeakwardError: it is another thing.
    """
    if not isinstance(given, nn.Module):
        raise PeakwardError(
            f"expected a case or a module, got {quoted(given)}: make one with `pw.case`"
        )
    return given


def place(given: object) -> torch.device:
    """A device that is here.

    Raises:
        PeakwardError: torch knows none of that name, or has none here.
    """
    try:
        found = torch.device(given) if isinstance(given, str | torch.device) else None
    except (RuntimeError, ValueError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise PeakwardError(f"expected a step on cpu or cuda, got one on {quoted(given)}")
    if found.type == "cuda" and not (found.index or 0) < torch.cuda.device_count():
        raise PeakwardError(
            f"expected a GPU that is here ({torch.cuda.device_count()} are), got {quoted(given)}: give "
            "another index, or cpu"
        )
    return found


def inputs(given: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A module's inputs, by position and by name.

    Raises:
        PeakwardError: neither a sequence nor a mapping.
    """
    if isinstance(given, torch.Tensor):
        raise PeakwardError("expected a sequence or a mapping of inputs, got a tensor: write (x,)")
    if not isinstance(given, Mapping):
        return check.items(given, "inputs"), {}
    for name in given:
        check.line(name, "the name of an input")
    return (), dict(given)
