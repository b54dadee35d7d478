"""A result of a module that is computed when it is first read, and not at all where nobody reads it."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from peakward.records.errors import PeakwardError

_updates = WeakIdKeyDictionary()
"""How often an optimizer updated a tensor since something was first to be computed of it."""


class Later(Tensor):
    """A tensor that is computed when it is first read, its shape, type and device apart.

    Its gradient then flows as if it had been there from the start.
    """

    compute: Callable[[], Tensor]
    is_current: Callable[[], bool]
    found: Tensor | None

    @staticmethod
    def made(like: Tensor, compute: Callable[..., Tensor], *of: Tensor) -> "Later":
        """A tensor in the form of `like`, which `compute` makes of others."""
        new = torch.Tensor._make_wrapper_subclass(
            Later, like.shape, dtype=like.dtype, device=like.device
        )
        around = _as_now(like.device.type)

        def computed() -> Tensor:
            with around():
                return compute(*of)

        new.compute, new.is_current, new.found = computed, unchanged(of), None
        return new

    def value(self) -> Tensor:
        """The tensor itself.

        Raises:
            PeakwardError: what it comes of was changed meanwhile, so that it would be another.
        """
        if self.found is None:
            if not self.is_current():
                raise PeakwardError(
                    "expected logits to be read before the weights are updated, got a read after that, which "
                    "would give those of the new weights: read them before optimizer.step(), or undo the "
                    "lever of the loss"
                )
            warnings.warn(
                "logits that were left out of the loss are read: their product is made for that",
                stacklevel=2,
            )
            self.found = self.compute()
        return self.found

    @classmethod
    def __torch_function__(
        cls, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Answers at once what reads no values, and gives the values to anything else."""
        kwargs = kwargs or {}
        if func in _WITHOUT_VALUES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        args, kwargs = tree_map(_real, (tuple(args), kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map(_real, (tuple(args), kwargs or {}))
        return func(*args, **kwargs)


_WITHOUT_VALUES = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim")),
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
}


def _as_now(device: str) -> Callable[[], AbstractContextManager[Any]]:
    """Makes the modes of now again: whether gradients are kept, and autocast."""
    keeps = torch.is_grad_enabled()
    casts = device in ("cpu", "cuda") and torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if casts else None

    @contextmanager
    def around() -> Iterator[None]:
        plain = (
            torch.autocast(device, enabled=False) if device in ("cpu", "cuda") else nullcontext()
        )
        with torch.set_grad_enabled(keeps), torch.autocast(device, dtype=dtype) if casts else plain:
            yield

    return around


def _real(each: Any) -> Any:
    return each.value() if isinstance(each, Later) else each


def unchanged(tensors: Sequence[Tensor]) -> Callable[[], bool]:
    """Whether the tensors have the values of now, whenever that is asked, without looking at them.

    A tensor's version tells what changed it, but for fused optimizers, which leave it as it is (torch 2.13).
    """
    for each in tensors:
        _updates.setdefault(each, 0)

    def stamps() -> list[tuple[int, int]]:
        return [(each._version, _updates[each]) for each in tensors]

    before = stamps()
    return lambda: stamps() == before


def _count(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for each in group["params"]:
            if each in _updates:
                _updates[each] += 1


register_optimizer_step_post_hook(_count)
