"""A training step that the user gives as a function, as it is or with torch's settings around its call."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from peakward.lab.data.given_loader import GivenLoader
from peakward.lab.levers import module_levers
from peakward.lab.levers.marks import Mark, unmarked
from peakward.levers import catalogue
from peakward.records.case import StepCase
from peakward.records.measurement import LoaderWait


@dataclass(frozen=True, kw_only=True)
class Given:
    """The user's step: a step of no arguments, or of a batch where there is a loader; the model that
    it trains and the optimizer that it steps, where they were given too."""

    step: Callable[..., object]
    model: nn.Module | None = None
    optimizer: torch.optim.Optimizer | None = None
    loader: Iterable[Any] | None = None


class GivenStep:
    """The step, called again and again; no graph behind what it returns is kept."""

    times_phases = False
    uncaptured = None

    def __init__(self, given: Given, feed: GivenLoader | None) -> None:
        self._given = given
        self.returned: tuple[Tensor | float, ...] = ()
        """Tensors and numbers of what the last call returned, without their graphs."""
        self._feed = feed

    @property
    def n_parameters(self) -> int | None:
        """The number of parameters of the model, where it was given."""
        model = self._given.model
        return None if model is None else sum(each.numel() for each in model.parameters())

    def step(self, _mark: Mark = unmarked) -> None:
        """One call; where the loader feeds it, on its next batch."""
        self.returned = ()  # Or the outputs of two steps would be held at once.
        result = self._given.step() if self._feed is None else self._given.step(self._feed())
        self.returned = tuple(
            each.detach() if isinstance(each, Tensor) else each
            for each in tree_leaves(result)
            if isinstance(each, Tensor | int | float)
        )

    def ranged(self) -> AbstractContextManager[None]:
        """While it lasts, the model's repeated blocks run in the ranges of `ranges`."""
        model = self._given.model
        return nullcontext() if model is None else module_levers.ranged(model)

    def loss(self) -> float | None:
        """The result of the last call, where it is one number."""
        if len(self.returned) != 1:
            return None
        (only,) = self.returned
        return float(only) if not isinstance(only, Tensor) or only.numel() == 1 else None

    def held_for_backward_bytes(self) -> None:
        """Nobody looks into the step."""

    def waited(self, n_steps: int) -> LoaderWait | None:
        """The times that the last steps waited for the loader."""
        return None if self._feed is None else self._feed.waited(n_steps)


@contextmanager
def gradients_seen(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """While it lasts, copies of the gradients that a backward pass leaves, by the parameter's name: a step
    may set them free before it ends."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[Tensor], None]:
        def kept(parameter: Tensor) -> None:
            if parameter.grad is not None:
                seen[name] = parameter.grad.detach().clone()

        return kept

    with ExitStack() as hooks:
        for name, each in model.named_parameters():
            if each.requires_grad:
                hooks.callback(each.register_post_accumulate_grad_hook(keep(name)).remove)
        yield seen


@contextmanager
def given_step(case: StepCase, base: StepCase, given: Given) -> Iterator[GivenStep]:
    """The step under what the case sets and the base does not; on leaving, torch's settings are as they
    were."""
    with catalogue.around(case.configuration, base.configuration):
        feed = None if given.loader is None else GivenLoader(given.loader, case.device)
        yield GivenStep(given, feed)
