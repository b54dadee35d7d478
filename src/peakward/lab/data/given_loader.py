"""Batches from a user's loader, which is left as it was, and the time that each step waited for its own."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from peakward.records.case import DeviceType
from peakward.records.errors import PeakwardError
from peakward.records.measurement import LoaderWait

_END = object()


class GivenLoader:
    """Each call returns the loader's next batch; at the end of an epoch the loader begins again.

    On a GPU an event is recorded before the wait and one after it, as in `data.feed.Feed`.
    """

    def __init__(self, loader: Iterable[Any], device_type: DeviceType) -> None:
        self._loader, self._device_type = loader, device_type
        self._shapes: list[torch.Size] | None = None
        self.rewind()

    def __call__(self) -> Any:
        """
        Raises:
            PeakwardError: the loader has no more batches, or one of other shapes than those before.
        """
        began = perf_counter()
        before = self._event()
        batch = self._next()
        after = self._event()
        self._wait_s.append(perf_counter() - began)
        if before is not None and after is not None:
            self._waits.append((before, after))
        self._expect_same_shapes(batch)
        return batch

    def rewind(self) -> None:
        """Begins an epoch, and forgets the times."""
        self._loaded: Iterator[Any] | None = None
        self._wait_s: list[float] = []
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def waited(self, n_steps: int) -> LoaderWait:
        """The waits of the last `n_steps` steps. Waits for the device to reach them."""
        idle_s = None
        if self._waits:
            torch.cuda.synchronize()
            times_ms = [before.elapsed_time(after) for before, after in self._waits[-n_steps:]]
            idle_s = tuple(1e-3 * each for each in times_ms)
        return LoaderWait(
            wait_s=tuple(self._wait_s[-n_steps:]), idle_s=idle_s, first_wait_s=self._wait_s[0]
        )

    def _next(self) -> Any:
        if self._loaded is not None:
            batch = next(self._loaded, _END)
            if batch is not _END:
                return batch
        self._loaded = iter(self._loader)  # This starts its workers.
        batch = next(self._loaded, _END)
        if batch is _END:
            raise PeakwardError(
                f"expected a loader with a batch for every step, got one that ended after "
                f"{len(self._wait_s)} and had none when it was begun again: give one whose data set can be "
                "read again"
            )
        return batch

    def _expect_same_shapes(self, batch: Any) -> None:
        shapes = [each.shape for each in tree_leaves(batch) if isinstance(each, Tensor)]
        if self._shapes is None:
            self._shapes = shapes
        if shapes != self._shapes:
            raise PeakwardError(
                f"expected batches of the same shapes, got {_said(shapes)} after {_said(self._shapes)}: "
                "make the loader with drop_last=True, and pad its sequences to one length"
            )

    def _event(self) -> torch.cuda.Event | None:
        if self._device_type == "cpu":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _said(shapes: list[torch.Size]) -> str:
    return ", ".join(str(tuple(each)) for each in shapes) or "no tensors"


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


def first_batch(loader: Iterable[Any] | None) -> Any:
    """The first batch of a new epoch; the loader is then as before.

    Raises:
        PeakwardError: no loader, one that cannot be begun again, or one without a batch.
    """
    if loader is None:
        raise PeakwardError("expected a batch or a loader that gives one, got neither: give one")
    expect_repeatable(loader)
    with kept_loader(loader):
        batch = next(iter(loader), _END)
    if batch is _END:
        raise PeakwardError("expected a loader with a batch, got one without: give another")
    return batch


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
