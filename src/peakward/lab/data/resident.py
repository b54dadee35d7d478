"""Batches that are on the device before any step, and take turns."""

from collections.abc import Sequence

from torch import Tensor

MicroBatches = Sequence[tuple[Tensor, ...]]
"""The batches of a step: ids, and targets where there is a loss."""


class Resident:
    """Each call returns the next step's batches; the first ones follow the last."""

    def __init__(self, steps: Sequence[MicroBatches]) -> None:
        self._steps = steps
        self._next = 0

    def __call__(self) -> MicroBatches:
        """The next step's batches."""
        found = self.again()
        self._next += 1
        return found

    def again(self) -> MicroBatches:
        """The next step's batches, without moving on to the step after it."""
        return self._steps[self._next % len(self._steps)]

    def held(self) -> list[Tensor]:
        """The tensors that are held on the device."""
        return [tensor for step in self._steps for batch in step for tensor in batch]

    def rewind(self) -> None:
        """Begins with the first batches again."""
        self._next = 0
