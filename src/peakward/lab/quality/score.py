"""Shared by the subjects of quality: each runs its steps once, timed one by one, and gives losses."""

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peakward.lab.data import text
from peakward.records.case import QualityCase
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Quality, Run

WARM_UP_STEPS = 3
"""Steps whose times are kept apart: memory is taken, and libraries are set up."""


class Score(NamedTuple):
    """The times of the steps, and the losses."""

    run: Run
    quality: Quality


class Work(NamedTuple):
    """A model that is ready, and what is done with it."""

    n_parameters: int
    n_steps: int
    run: Callable[[Callable[[int], None]], Score]
    """Is given a function that is told how many steps were done."""


class Times:
    """The times of steps, each waited for."""

    def __init__(self, device: str, told: Callable[[int], None]) -> None:
        self._device, self._told = device, told
        self._seconds: list[float] = []

    def step(self, call: Callable[[], Any]) -> Any:
        """Makes one step, and times it."""
        began = perf_counter()
        found = call()
        if self._device == "cuda":
            torch.cuda.synchronize()
        self._seconds.append(perf_counter() - began)
        self._told(len(self._seconds))
        return found

    @property
    def run(self) -> Run:
        """The steps, those of the warm-up apart."""
        seconds = tuple(self._seconds)
        return Run(warmup_s=seconds[:WARM_UP_STEPS], steps_s=seconds[WARM_UP_STEPS:])


def chosen(case: QualityCase, ways: Iterable[str], *names: str) -> tuple[int, ...]:
    """The case's sizes, one for each name, of a way that there is.

    Raises:
        PeakwardError: another way, another number of sizes, or one that is not positive.
    """
    if case.way not in (known := tuple(ways)):
        raise PeakwardError(
            f"expected a way of {case.subject} ({', '.join(known)}), got {case.way!r}"
        )
    if len(case.sizes) != len(names) or min(case.sizes) < 1:
        raise PeakwardError(
            f"expected {len(names)} positive sizes ({', '.join(names)}) for {case.subject}, got "
            f"{case.sizes}"
        )
    return case.sizes


def stretches(
    case: QualityCase, encode: Callable[[str], NDArray[np.int64]], n: int, length: int
) -> Tensor:
    """The first n · length tokens of the case's text, (n, length) of int64 on its device.

    Raises:
        PeakwardError: a text that is not there or has fewer tokens.
    """
    ids = text.first_tokens(case.text, encode, n * length)
    return torch.from_numpy(ids).to(case.device).reshape(n, length)


def by_stretch(losses: Tensor, length: int) -> tuple[float, ...]:
    """The mean loss of each whole stretch of that length in each row, (rows, tokens) → rows · stretches."""
    whole = losses.shape[1] // length * length
    if not whole:
        raise ValueError(f"expected at least {length} tokens a row, got {losses.shape[1]}")
    parts = losses[:, :whole].double().reshape(-1, length).mean(1)
    return tuple(parts.tolist())
