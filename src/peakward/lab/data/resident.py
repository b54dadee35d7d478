"""Batches that lie on the device before any step, in turn."""

from collections.abc import Sequence

from torch import Tensor

MicroBatches = Sequence[tuple[Tensor, ...]]
"""Of a step: ids, and where there is a loss targets."""


class Resident:
    """Calling it gives the next step's batches; after the last ones come the first again."""

    def __init__(self, steps: Sequence[MicroBatches]) -> None:
        self._steps = steps
        self._next = 0

    def __call__(self) -> MicroBatches:
        """The next step's."""
        found = self.again()
        self._next += 1
        return found

    def again(self) -> MicroBatches:
        """The next step's, which the next call gives again."""
        return self._steps[self._next % len(self._steps)]

    def held(self) -> list[Tensor]:
        """On the device."""
        return [tensor for step in self._steps for batch in step for tensor in batch]

    def rewind(self) -> None:
        """Begin with the first again."""
        self._next = 0
