"""Iterates a user's loader and leaves it as it was."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from peakward.records.errors import PeakwardError


def expect_repeatable(loader: Iterable[Any]) -> None:
    """
    Raises:
        PeakwardError: a loader that gives its batches once, or is in the middle of an epoch that another
            one would end.
    """
    if not hasattr(loader, "__iter__"):
        raise PeakwardError(
            f"expected a loader to iterate over, as a torch DataLoader or a list of batches, got "
            f"{type(loader).__name__}"
        )
    if isinstance(loader, Iterator):
        raise PeakwardError(
            f"expected a loader that can be begun again, as a torch DataLoader or a list of batches, got the "
            f"iterator {type(loader).__name__}, whose batches would be gone: give what it iterates over"
        )
    if isinstance(loader, DataLoader) and loader._iterator is not None:
        raise PeakwardError(
            "expected a loader at rest, got one whose persistent workers are in an epoch, which another "
            "would end: give one that was not iterated over yet"
        )


@contextmanager
def kept_loader(loader: Iterable[Any] | None) -> Iterator[None]:
    """Restores, on leaving, the random generators of the loader and of its samplers, and ends the
    workers that it keeps. The counters and contents of its data set are not restored."""
    before = [(each, each.get_state()) for each in _generators(loader)]
    try:
        yield
    finally:
        for generator, state in before:
            generator.set_state(state)
        if isinstance(loader, DataLoader) and loader._iterator is not None:
            loader._iterator._shutdown_workers()  # type: ignore[attr-defined]
            loader._iterator = None


def _generators(loader: object) -> list[torch.Generator]:
    sampler, batch_sampler = (getattr(loader, name, None) for name in ("sampler", "batch_sampler"))
    holders = (loader, sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
    held = {id(each): each for each in (getattr(one, "generator", None) for one in holders)}
    return [each for each in held.values() if isinstance(each, torch.Generator)]
