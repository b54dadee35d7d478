"""Values of a captured step that are known although its tensors have none.

What runs may depend on a mask, on positions, or on the longest of some lengths. Such values follow from the
integers that were given and from constants by operators on few numbers, and these are computed beside the
capture. What depends on a parameter or on an activation stays unknown. A number that is drawn is known by its
range alone: whether it is below 0, as where layers are dropped with a probability of 0.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from peakward.lab.models.operator_work import tensors

MOST_ELEMENTS = 2**22
"""Larger tensors of integers stay unknown: as many take a CPU some milliseconds an operator."""
MOST_FRACTIONS = 2**16
"""As many for other numbers. A mask of tokens may be made of them, as OPT's; one of scores is not read."""
_READ = torch.ops.aten._local_scalar_dense.default
_DRAW = torch.ops.aten.rand.default
_DRAWN = (0.0, 1.0 - 2**-24)
"""The least and the largest number that it draws."""
_COMPARISONS = frozenset(getattr(torch.ops.aten, name).Scalar for name in ("lt", "le", "gt", "ge"))


class KnownValues(TorchDispatchMode):
    """Computes numbers that are known, and answers the reads of them.

    Args:
        on_read: Is given each tensor of one element that is read. There the host waits for a GPU.
    """

    def __init__(self, on_read: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._on_read = on_read
        self._values = WeakIdKeyDictionary()
        self._met = WeakIdKeyDictionary()
        """Tensors of the code's own that are no stand-ins: constants, and lists of indices, which it makes
        tensors of. What a stand-in was written into is not known any more."""
        self._described = WeakIdKeyDictionary()
        """The stand-ins of tensors on the meta device that were not given as inputs."""
        self._drawn = WeakIdKeyDictionary()
        """Single numbers between those of `_DRAWN`."""
        self._decided = WeakIdKeyDictionary()
        """The answer of a comparison that every such number gives. It is drawn on the host, which waits for
        no GPU to read it."""
        self.draws_decide = False
        """Whether one was read. A compiler ends its graph there."""

    def tell(self, stand_in: Tensor, given: Tensor) -> None:
        """Says the value that a stand-in has, where it is one of few integers, and no mere shape. Other
        numbers are examples, on which nothing is to depend."""
        if (
            _is_whole(given)
            and _is_small(given)
            and not given.is_meta
            and not isinstance(given, FakeTensor)
        ):
            with no_dispatch():
                self._values[stand_in] = given.detach().cpu().clone()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # What the module or its loss holds on the meta device lies beside the stand-ins, on the CPU.
        args, kwargs = tree_map_only(Tensor, self._beside, (args, kwargs or {}))
        given = tensors((args, kwargs))
        self._meet(given)
        known = [each for each in given if each in self._values]
        if func is _READ and given[0] in self._decided:
            self.draws_decide = True
            return self._decided[given[0]]
        if func is _READ and known:
            self._on_read(given[0])
            with no_dispatch():
                return self._values[given[0]].item()
        result = func(*args, **kwargs)
        made = tensors(result)
        if len(known) == len(given) and made and all(map(_is_small, made)) and _repeats(func):
            self._compute(func, args, kwargs, made)
        elif known and func._schema.is_mutable:
            self._forget(known)
        elif func is _DRAW and result.numel() == 1:
            self._drawn[result] = None
        elif func in _COMPARISONS and args[0] in self._drawn:
            self._decide(func, args[1], result)
        return result

    def _meet(self, given: list[Tensor]) -> None:
        """Takes the values of tensors that the code brings along."""
        for each in given:
            if isinstance(each, FakeTensor) or each in self._met or not _is_small(each):
                continue
            self._met[each] = None
            with no_dispatch():
                self._values[each] = each.detach().cpu().clone()

    def _decide(self, comparison: OpOverload, other: Any, result: Tensor) -> None:
        with no_dispatch():
            answers = {comparison(torch.tensor(each), other).item() for each in _DRAWN}
        if len(answers) == 1:
            (self._decided[result],) = answers

    def _beside(self, given: Tensor) -> Tensor:
        if isinstance(given, FakeTensor) or not given.is_meta:
            return given
        if given not in self._described:
            self._described[given] = torch.empty_strided(
                given.size(), given.stride(), dtype=given.dtype, device="cpu"
            )
        found: Tensor = self._described[given]
        return found

    def _compute(self, func: OpOverload, args: Any, kwargs: Any, made: list[Tensor]) -> None:
        args, kwargs = tree_map_only(Tensor, self._values.__getitem__, (args, kwargs))
        with no_dispatch():
            values = func(*args, **kwargs)
        for each, value in zip(made, tensors(values), strict=True):
            self._values[each] = value

    def _forget(self, changed: list[Tensor]) -> None:
        """Forgets these and their views."""
        lost = {self._values[each].untyped_storage()._cdata for each in changed}
        for each, value in list(self._values.items()):
            if value.untyped_storage()._cdata in lost:
                del self._values[each]


def _is_small(tensor: Tensor) -> bool:
    return tensor.numel() <= (MOST_ELEMENTS if _is_whole(tensor) else MOST_FRACTIONS)


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _repeats(func: OpOverload) -> bool:
    """Whether the operator gives the same each time: what is drawn or not written does not."""
    drawn = torch.Tag.nondeterministic_seeded in func.tags
    return not drawn and "empty" not in str(func.overloadpacket)


@contextmanager
def not_traced() -> Iterator[None]:
    """While it lasts, transformers does not take a tensor without values for one that is traced.

    Where it traces it may not look into a mask, and builds one where a real step finds that it needs none.
    """
    its_own = sys.modules.get("transformers.utils.import_utils")
    if not hasattr(its_own, "is_fake_tensor"):
        yield
        return
    with patch.object(its_own, "is_fake_tensor", lambda _tensor: False):
        yield
