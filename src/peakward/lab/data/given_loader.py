"""Batches from a user's loader, which is left as it was, or from one that is made of it, and the time that
each step waited for its own."""

import multiprocessing
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

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
        self._loaded: Iterator[Any] | None = None
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

    @property
    def n_ahead(self) -> int:
        """The number of batches that may be ready when one is asked for."""
        loader = self._loader.loader if isinstance(self._loader, Ahead) else self._loader
        if not isinstance(loader, DataLoader):
            return 0
        return loader.num_workers * (loader.prefetch_factor or 0)

    def close(self) -> None:
        """End the workers of a loader that was made for this feed, which nobody else has."""
        self._loaded = None
        loader = self._loader.loader if isinstance(self._loader, Ahead) else self._loader
        if isinstance(loader, Rebuilt):
            _end_workers(loader)

    def rewind(self) -> None:
        """Begins an epoch, and forgets the times."""
        self._loaded = None
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
        if isinstance(loader, DataLoader):
            _end_workers(loader)


def _end_workers(loader: DataLoader[Any]) -> None:
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()  # type: ignore[attr-defined]
        loader._iterator = None


class Rebuilt(DataLoader[Any]):
    """A DataLoader whose workers stay from epoch to epoch."""

    def __iter__(self) -> Any:
        if self._iterator is not None:
            # A loader whose workers end draws a seed for new ones in each epoch, and the sampler's order
            # comes from the same generator behind it. Torch draws none where they stay.
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return super().__iter__()


class Ahead:
    """The loader's batches on the GPU, each copied while the step before it runs."""

    def __init__(self, loader: Rebuilt) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        copies = torch.cuda.Stream()
        ready: tuple[Any, torch.cuda.Event] | None = None
        for batch in self.loader:
            with torch.cuda.stream(copies):
                moved = tree_map_only(
                    Tensor, lambda each: each.to("cuda", non_blocking=True), batch
                )
            done = copies.record_event()
            if ready is not None:
                yield _arrived(*ready)
            ready = moved, done
        if ready is not None:
            yield _arrived(*ready)


def _arrived(batch: Any, done: torch.cuda.Event) -> Any:
    """The batch, which what is launched from now on finds whole."""
    now = torch.cuda.current_stream()
    now.wait_event(done)
    for each in tree_leaves(batch):
        if isinstance(each, Tensor) and each.is_cuda:
            each.record_stream(now)
    return batch


def rebuilt(
    loader: Iterable[Any], *, n_workers: int, pinned: bool = False, ahead: bool = False
) -> Iterable[Any]:
    """The loader with worker processes that stay, with the same batches in the same order.

    Its dataset, sampler, generator, collate_fn, worker_init_fn and timeout are the given loader's.

    Args:
        loader: a DataLoader over a dataset that is read by index.
        n_workers: processes, each of which makes two batches ahead.
        pinned: batches lie in page-locked memory.
        ahead: batches lie on the current GPU, copied while the step before runs.

    Raises:
        PeakwardError: as `rebuild_obstacle`.
    """
    reason = rebuild_obstacle(loader)
    if reason is not None:
        raise PeakwardError(
            f"expected a loader that can be made anew with workers, got one that {reason}"
        )
    assert isinstance(loader, DataLoader)
    made = Rebuilt(
        loader.dataset,
        **_order(loader),
        num_workers=n_workers,
        collate_fn=loader.collate_fn,
        pin_memory=pinned or ahead or loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=2,
        persistent_workers=True,
        in_order=loader.in_order,
    )
    return Ahead(made) if ahead else made


def _order(loader: DataLoader[Any]) -> dict[str, Any]:
    """The arguments by which a loader takes its samples in the order of this one."""
    if loader.batch_sampler is None or type(loader.batch_sampler) is BatchSampler:
        sizes = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        if loader.batch_sampler is None or loader.batch_size is not None:
            return {"sampler": loader.sampler, **sizes}
    return {"batch_sampler": loader.batch_sampler}


def rebuild_obstacle(loader: Iterable[Any]) -> str | None:
    """Why no loader with workers can be made of this one, or None."""
    if not isinstance(loader, DataLoader):
        return f"is a {type(loader).__name__}: make a torch DataLoader of it"
    if type(loader) not in (DataLoader, Rebuilt):
        return f"is a {type(loader).__name__}, which may do more than torch's: give it workers yourself"
    if isinstance(loader.dataset, IterableDataset):
        return (
            f"reads an IterableDataset, {type(loader.dataset).__name__}, all of which each worker would "
            "read: split it by torch.utils.data.get_worker_info() and give it workers yourself"
        )
    context = loader.multiprocessing_context or multiprocessing
    if context.get_start_method() == "fork":
        return None
    for name in ("collate_fn", "worker_init_fn", "dataset"):
        try:
            ForkingPickler.dumps(getattr(loader, name))
        except Exception as error:  # noqa: BLE001  what a user's object raises where it is pickled
            return (
                f"has a {name} that cannot go to a worker ({type(error).__name__}: "
                f"{str(error).partition(chr(10))[0]}): make it a function or a class of a module"
            )
    return None


def _generators(loader: object) -> list[torch.Generator]:
    sampler, batch_sampler = (getattr(loader, name, None) for name in ("sampler", "batch_sampler"))
    holders = (loader, sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
    held = {id(each): each for each in (getattr(one, "generator", None) for one in holders)}
    return [each for each in held.values() if isinstance(each, torch.Generator)]
