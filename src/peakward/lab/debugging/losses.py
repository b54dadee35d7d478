"""The losses of a run, kept where they are made and read without waiting for the device."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from peakward.records.errors import PeakwardError


class _Copied(NamedTuple):
    values: Tensor
    ready: torch.cuda.Event


class Losses:
    """The loss of every step.

    A loss on a GPU is copied into a row on the device, and the row to the host every `every` steps; it is
    looked at when it has arrived. `float(loss)` at each step would make the host wait for the device, which
    then idles until the host has launched the next step.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.values: list[float | None] = []
        """Those that were read; None where a step returned no number."""
        self._row: Tensor | None = None
        self._n_in_row = 0
        self._under_way: list[_Copied] = []
        self._n_looked_at = 0
        self._first: int | None = None

    def add(self, loss: object) -> None:
        """Keep what a step returned: a tensor of one value, a number, or None for no loss.

        Raises:
            PeakwardError: a tensor of several values, or anything else.
        """
        if loss is not None and not isinstance(loss, Tensor | int | float):
            raise PeakwardError(
                "expected a step that returns its loss, as a tensor of one value or a number of Python, got "
                f"{type(loss).__name__}: return loss.detach(), or nothing"
            )
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise PeakwardError(
                f"expected a step that returns its loss, got a tensor of shape {tuple(loss.shape)}: return "
                "loss.mean(), or nothing"
            )
        if isinstance(loss, Tensor) and loss.device.type == "cuda":
            self._keep(loss.detach())
            return
        self._flush()
        number = loss.detach() if isinstance(loss, Tensor) else loss
        self.values.append(None if number is None else float(number))

    def first_nonfinite(self) -> int | None:
        """The first step whose loss is not finite, among those that have arrived; does not wait."""
        while self._under_way and self._under_way[0].ready.query():
            self._read(self._under_way.pop(0))
        self._look()
        return self._first

    def all(self) -> list[float | None]:
        """Every loss; waits for the device."""
        self._flush()
        return self.values

    def _look(self) -> None:
        """At what has arrived since the last look."""
        for n in range(self._n_looked_at, len(self.values)):
            value = self.values[n]
            if self._first is None and value is not None and not math.isfinite(value):
                self._first = n
        self._n_looked_at = len(self.values)

    def _keep(self, loss: Tensor) -> None:
        if self._row is None:
            self._row = torch.zeros(self.every, dtype=torch.float64, device=loss.device)
        self._row[self._n_in_row].copy_(loss.reshape(()))
        self._n_in_row += 1
        if self._n_in_row == self.every:
            self._send()

    def _send(self) -> None:
        assert self._row is not None
        held = torch.empty(self._n_in_row, dtype=torch.float64, pin_memory=True)
        held.copy_(self._row[: self._n_in_row], non_blocking=True)
        ready = torch.cuda.Event()
        ready.record()
        self._under_way.append(_Copied(held, ready))
        self._n_in_row = 0

    def _flush(self) -> None:
        if self._n_in_row:
            self._send()
        for each in self._under_way:
            each.ready.synchronize()
            self._read(each)
        self._under_way = []

    def _read(self, each: _Copied) -> None:
        self.values.extend(each.values.tolist())


def same(one: float | None, other: float | None) -> bool:
    """Whether two losses are equal bit for bit, or both not a number."""
    if one is None or other is None:
        return one is other
    return one == other or (math.isnan(one) and math.isnan(other))
