"""Tells what is wrong with a user's module, its batch or its loss before anything is measured."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from peakward.lab.levers.module_step import ModuleStep
from peakward.lab.levers.precision import parameter_dtype
from peakward.lab.models import module_source
from peakward.lab.models.given_module import GivenModule
from peakward.lab.models.python_source import raise_as_bad_input
from peakward.levers.precision import coming_in
from peakward.records.case import AS_WRITTEN, CompileScope, ModuleCase
from peakward.records.errors import PeakwardError

N_CALLS = 3
"""The first may make what stays; the others must be alike."""


class Comes(NamedTuple):
    """The state in which a factory's module comes, from which a run starts."""

    compiled: CompileScope | None
    """The part that the factory compiled."""
    in_bf16: bool
    """Whether its parameters are in bf16."""


def check(case: ModuleCase) -> Comes:
    """Build the module and run it as it is, but not compiled.

    Raises:
        PeakwardError: see `check_given`, and `module_source.build`.
    """
    given = module_source.build(case)
    check_given(case, given)
    return Comes(given.compiled, given.comes_in_bf16)


def check_given(case: ModuleCase, given: GivenModule) -> None:
    """Run the module as it is, eager. It is moved, and gets gradients.

    Raises:
        PeakwardError: there is nothing to train, the batch does not fit it, nothing can be gone backward
            from, or the shapes of what it computes change from call to call.
    """
    plain = ModuleCase(
        source=case.source,
        fingerprint=case.fingerprint,
        workload=case.workload,
        configuration=coming_in(AS_WRITTEN, in_bf16=given.comes_in_bf16),
        device=case.device,
    )
    if case.workload.pass_ == "train_step" and next(given.module.parameters(), None) is None:
        raise PeakwardError(
            f"expected a module with parameters to train, got {case.source} without any: take the "
            "pass forward"
        )
    step = ModuleStep(plain, given, parameter_dtype(plain.configuration.precision))
    seen = []
    try:
        for _ in range(N_CALLS):
            with ShapesSeen() as shapes:
                step.step()
            seen.append(shapes.seen)
            step.rewind()
    except Exception as error:  # noqa: BLE001  a user's code may raise anything
        raise_as_bad_input(error, f"a batch, and a loss, that fit {case.source} on {case.device}")
    if seen[1] != seen[2]:
        raise PeakwardError(
            f"expected a step of the same shapes at every call, got other ones of {case.source} on the same "
            "batch: let nothing it computes depend on a counter or a random number"
        )


class ShapesSeen(TorchDispatchMode):
    """The operators that torch dispatches, and the shapes of what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[torch.Size, ...]]] = []
        self.device_types: set[str] = set()
        """Where these lie."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        self.seen.append((str(func), tuple(each.shape for each in given)))
        self.device_types.update(each.device.type for each in given)
        return result
