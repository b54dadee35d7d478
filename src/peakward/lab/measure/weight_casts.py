"""Reports copies of weights in autocast's type, as they are made."""

from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from peakward.lab.measure.module_marks import uncompiled
from peakward.lab.models.decoder import Decoder


@contextmanager
def told_casts(model: Decoder, tell: Callable[[int], None]) -> Iterator[None]:
    """Calls `tell` with the address of every copy of a parameter in another type that a module makes,
    in the forward pass and where a block is recomputed.

    Compiled modules are not reported: their casts are part of their kernels. Only a module's own
    forward pass is watched. While a mode is on, torch does not add up gradients in place, so a watched
    backward pass would allocate memory that a plain one does not.
    """
    weights = frozenset(address(each) for each in model.parameters())
    with ExitStack() as changes:
        for _, module in uncompiled(model, ""):
            if any(True for _ in module.parameters(recurse=False)):
                changes.enter_context(_watched(module, _Casts(weights, tell)))
        yield


def address(tensor: Tensor) -> int:
    """The address of its storage."""
    return tensor.untyped_storage().data_ptr()


@contextmanager
def _watched(module: nn.Module, casts: TorchDispatchMode) -> Iterator[None]:
    def before(*_arguments: Any) -> None:
        casts.__enter__()

    def after(*_arguments: Any) -> None:
        casts.__exit__(None, None, None)

    hooks = (
        module.register_forward_pre_hook(before),
        module.register_forward_hook(after, always_call=True),
    )
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


class _Casts(TorchDispatchMode):
    """Runs every operator as it is, and reports copies whose source is a weight."""

    def __init__(self, weights: Set[int], tell: Callable[[int], None]) -> None:
        super().__init__()
        self._weights, self._tell = weights, tell

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and address(args[0]) in self._weights:
            self._tell(address(made))
        return made
