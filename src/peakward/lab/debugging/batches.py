"""The batches of a watched run: kept as they were given, and given again with the random numbers that a step
on them drew."""

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peakward.lab.debugging.snapshot import random_state, set_random
from peakward.lab.debugging.values import tensors_in
from peakward.records.errors import PeakwardError

LOOKED_BACK = 2
"""Batches that a new one is expected not to write into: a loader may take turns between two buffers."""


class Batches:
    """The batches since the oldest snapshot, by the number of their step.

    A loader that draws from the same generators as the step moves them between two steps, which a replay
    without it does not. Which ones it moves is looked at once behind each snapshot, because NumPy takes 75 µs
    to tell its state; of those, the state behind every batch is kept.

    Args:
        given: the loader; None where a step takes no batch.
    """

    def __init__(self, given: Iterable[Any] | None) -> None:
        self._source: Iterator[Any] | None = None if given is None else iter(given)
        self._kept: dict[int, Any] = {}
        self._random: dict[int, dict[str, Any]] = {}
        self._recent: deque[list[Tensor]] = deque(maxlen=LOOKED_BACK)
        self._is_looked_at = True
        self._moved: set[str] = set()

    def has(self, n: int) -> bool:
        """Whether there is a batch for that step, or it takes none; the batch is read and kept.

        Raises:
            PeakwardError: the loader writes a batch into the memory of an earlier one.
        """
        if self._source is None or n in self._kept:
            return True
        before = random_state() if self._is_looked_at else {}
        written = self._times_written()
        try:
            batch = next(self._source)
        except StopIteration:
            return False
        if self._times_written() != written:
            raise PeakwardError(
                "expected batches that stay as they were given, got a loader that writes one into the memory "
                "of another: a replay needs both. Give copies: batches=map(copy.deepcopy, loader)"
            )
        self._kept[n] = batch
        # Inference mode counts no writes.
        self._recent.append([each for each in tensors_in(batch) if not each.is_inference()])
        self._moved |= {
            name for name, now in random_state(before).items() if not _equal(before[name], now)
        }
        self._is_looked_at = False
        self._random[n] = random_state(self._moved)
        return True

    def forget(self, before: int) -> None:
        """Leave out those of earlier steps; call it where a snapshot was taken."""
        self._kept = {n: each for n, each in self._kept.items() if n >= before}
        self._random = {n: each for n, each in self._random.items() if n >= before}
        self._is_looked_at = True

    def kept(self, n: int) -> Any:
        """The batch itself; None where there is none."""
        return self._kept.get(n)

    def arguments(self, n: int) -> tuple[Any, ...]:
        """The arguments of the step: the batch, in containers of its own, so that a step may take it apart;
        none where it takes none."""
        if self._source is None:
            return ()
        return (_apart(self._kept[n]),)

    def put_back_random(self, n: int) -> None:
        """Set the generators that the loader moves as they were where that step began."""
        set_random(self._random.get(n, {}))

    def _times_written(self) -> list[int]:
        """The writes of autograd's count, of each tensor of the last batches."""
        return [each._version for tensors in self._recent for each in tensors]


def _equal(one: Any, other: Any) -> bool:
    """Whether two states of one generator are the same: tensors, or tuples of numbers, tuples and arrays."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def _apart(each: Any) -> Any:
    """The same tensors in containers of their own; other objects, such as a tokenizer's BatchEncoding, are
    copied as far as their attributes."""
    if isinstance(each, Tensor):
        return each
    if type(each) is dict:
        return {name: _apart(inside) for name, inside in each.items()}
    if type(each) in (list, tuple):
        return type(each)(map(_apart, each))
    return copy.copy(each) if isinstance(each, dict) or hasattr(each, "__dict__") else each
