"""Finds the steps of a loop that does not mark them: those of the first optimizer that steps in it."""

import weakref
from collections.abc import Callable
from typing import Any, Self

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


class OptimizerSteps:
    """Calls `ended` inside its `with` block after each step of that optimizer, in the loop's own
    thread.

    A loop with several optimizers, such as one for two players, steps once a round by the first one. A
    replayed graph of a captured step calls no optimizer.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._first: weakref.ref[Optimizer] | None = None

    def __enter__(self) -> Self:
        self._hook = register_optimizer_step_post_hook(self._stepped)
        return self

    def __exit__(self, *_error: object) -> None:
        self._hook.remove()

    def _stepped(self, optimizer: Optimizer, *_given: Any) -> None:
        if self._first is None:
            self._first = weakref.ref(optimizer)
        if self._first() is optimizer:
            self._ended()
