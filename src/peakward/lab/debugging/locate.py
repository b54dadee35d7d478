"""Finds the operator of one step that made the first value which is not finite and reached the end.

Every operator below autograd is seen by a dispatch mode. Its output is looked at, and a value that is not
finite is followed from tensor to tensor by the memory that holds it. So a value that a mask or a `where`
takes away again is no fault, and an infinity that was asked for (a mask of -inf) is none until it becomes not
a number.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from peakward.lab.debugging.modules import OUTSIDE, Place, Places
from peakward.lab.debugging.snapshot import TrainingState
from peakward.lab.debugging.values import is_finite, is_followed, plain, tensors_in
from peakward.records.debugging import Channel, Fault, TensorSummary

UNWRITTEN = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_")
"""Operators whose output nobody has written."""
UNKNOWN = "a constant"
"""The name of a tensor from before the step that is no part of what was given."""
AXES_LOOKED_AT = 4
MOST_ROWS = 2**24
"""Values of an input up to which its rows are looked at one by one."""


@dataclass(frozen=True)
class Origin:
    """Where a value that is not finite began."""

    operator: str
    place: Place
    output: TensorSummary
    inputs: tuple[TensorSummary, ...]
    channel: Channel | None
    exact_magnitude: float | None
    masked_rows: int
    was_asked_for: bool = False
    """An infinity of a constant: of a mask."""


class _Known(NamedTuple):
    """A piece of memory and the origin of its values. The reference keeps the address from reuse."""

    memory: StorageWeakRef
    origin: Origin | None


class Locator(TorchDispatchMode):
    """Looks at every operator while it is entered.

    Args:
        places: follows the step through its modules.
        named: tensors from before the step by name: those of the batch, parameters, moments, gradients.
        gradients: those that are kept now, by name.
    """

    def __init__(
        self,
        places: Places,
        named: dict[str, Tensor],
        gradients: Callable[[], Mapping[str, Tensor]],
    ) -> None:
        super().__init__()
        self._places, self._gradients = places, gradients
        self._names = {_address(each): name for name, each in named.items()}
        # A step may free its gradients: the references keep their addresses from reuse.
        self._held = [StorageWeakRef(plain(each).untyped_storage()) for each in named.values()]
        self._known: dict[int, _Known] = {}
        self._unwritten: dict[int, tuple[StorageWeakRef, Place]] = {}
        """Memory that was asked for and that no operator has written: a kernel of another maker may have."""
        self.read: Origin | None = None
        """The origin of the first value that the host read (`loss.item()`) and that was not finite."""

    def origin_of(self, tensor: Tensor) -> Origin | None:
        """Where the values of it that are not finite began; None where all are finite, or nobody saw it."""
        known = self._known.get(_address(tensor))
        if known is None and _address(tensor) in self._unwritten:
            return self._of_input(tensor)
        return None if known is None else known.origin

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        written = _written(func, args, kwargs)
        fresh = [each for each in written if _address(each) in self._unwritten]
        given = [
            each for each in _followed((args, kwargs)) if all(each is not one for one in fresh)
        ]
        before = [(each, self._of_input(each)) for each in given]
        if func is torch.ops.aten._local_scalar_dense.default and self.read is None:
            self.read = next((origin for _, origin in before if origin is not None), None)
        summaries = None
        if written and not any(origin for _, origin in before):
            summaries = (_inputs(func, args, kwargs), _exact(func, args, kwargs))
        out = func(*args, **kwargs)
        if func._schema.name.rpartition("::")[2] in UNWRITTEN:
            for each in _followed(out):
                memory = StorageWeakRef(plain(each).untyped_storage())
                self._unwritten[memory.cdata] = (memory, self._places.now())
            return out
        returned = [each for each in _followed(out) if all(each is not mine for mine in written)]
        for each in (*returned, *written):
            self._look(each, func, (args, kwargs), before, summaries)
        return out

    def _of_input(self, tensor: Tensor) -> Origin | None:
        known = self._known.get(_address(tensor))
        if known is None:
            origin = self._from_outside(tensor) if not is_finite(tensor) else None
            self._keep(tensor, origin)
            return origin
        if known.origin is None or is_finite(tensor):  # A view may leave those values out.
            return None
        return known.origin

    def _from_outside(self, tensor: Tensor) -> Origin:
        name = self._names.get(_address(tensor), UNKNOWN)
        place = self._places.now()
        if _address(tensor) in self._unwritten:
            name, (_, place) = (
                "a kernel that is no operator of torch",
                self._unwritten[_address(tensor)],
            )
        elif name.startswith("batch"):
            place = Place("data", *OUTSIDE, None, place.source)
        return Origin(
            operator=name,
            place=place,
            output=summary(tensor, name),
            inputs=(),
            channel=channel(tensor),
            exact_magnitude=None,
            masked_rows=0,
            was_asked_for=name == UNKNOWN and not bool(torch.isnan(tensor).any()),
        )

    def _look(
        self,
        out: Tensor,
        func: Any,
        called: tuple[tuple[Any, ...], dict[str, Any]],
        before: list[tuple[Tensor, Origin | None]],
        summaries: tuple[tuple[TensorSummary, ...], float | None] | None,
    ) -> None:
        if is_finite(out):
            known = self._known.get(_address(out))
            if known is None or known.origin is None or _is_whole(out):
                self._keep(out, None)
            return
        earlier = [origin for _, origin in before if origin is not None]
        real = [each for each in earlier if not each.was_asked_for]
        if real:
            self._keep(out, real[0])
            return
        is_nan = bool(torch.isnan(out).any())
        if earlier and not is_nan:
            self._keep(out, earlier[0])
            return
        args, kwargs = called
        constants = [each for each in tree_leaves(called) if isinstance(each, float)]
        inputs, exact = summaries or (_inputs(func, args, kwargs), _exact(func, args, kwargs))
        self._keep(
            out,
            Origin(
                operator=str(func),
                place=self._place([each for each, _ in before]),
                output=summary(out, "output"),
                inputs=inputs,
                channel=channel(out),
                exact_magnitude=exact,
                masked_rows=max((masked_rows(each) for each, _ in before), default=0),
                was_asked_for=not is_nan and any(math.isinf(each) for each in constants),
            ),
        )

    def _place(self, given: Sequence[Tensor]) -> Place:
        """The place of the operator that runs. No forward pass reads a gradient."""
        place = self._places.now()
        if place.phase != "forward":
            return place
        gradients = set(map(_address, self._gradients().values()))
        reads = any(_address(each) in gradients for each in given)
        return place._replace(phase="gradients") if reads else place

    def _keep(self, tensor: Tensor, origin: Origin | None) -> None:
        memory = StorageWeakRef(plain(tensor).untyped_storage())
        self._known[memory.cdata] = _Known(memory, origin)
        self._unwritten.pop(memory.cdata, None)


@contextmanager
def located(state: TrainingState, batch: object) -> Iterator[Locator]:
    """While it lasts, the operators of a step are looked at. The step runs eagerly: compiled code would be
    one operator."""
    places = Places(state.model)
    given = filter(is_followed, tensors_in(batch))
    inputs = {f"batch {n}": each for n, each in enumerate(given)}
    named = {**state.tensors(), **state.gradients(), **inputs}
    locator = Locator(places, named, state.gradients)
    torch.compiler.set_stance("force_eager")
    try:
        with places.followed(state.optimizer), locator:
            yield locator
    finally:
        torch.compiler.set_stance("default")


def fault_of(locator: Locator, step: int, ends: Mapping[str, object]) -> Fault | None:
    """The origin of the first end that is not finite and was followed.

    Args:
        ends: what a step leaves, tensors or numbers, by names that say what each is.
    """
    for name, each in ends.items():
        found = _origin(locator, each)
        if found is not None:
            at = found.place
            return Fault(
                step=step,
                phase=at.phase,
                reached=name,
                operator=found.operator,
                module=at.module,
                module_type=at.module_type,
                derivative_of=at.derivative_of,
                source=at.source,
                output=found.output,
                inputs=found.inputs,
                channel=found.channel,
                exact_magnitude=found.exact_magnitude,
                masked_rows=found.masked_rows,
            )
    return None


def _origin(locator: Locator, end: object) -> Origin | None:
    if isinstance(end, float) and not math.isfinite(end):
        return locator.read
    if not is_followed(end) or is_finite(end):
        return None
    return locator.origin_of(end)


def summary(tensor: Tensor, role: str) -> TensorSummary:
    """The values of a tensor of any shape; waits for the device."""
    values = plain(tensor).double()
    finite = values[torch.isfinite(values)]
    some = finite.numel() > 0
    has_rows = values.ndim and 1 < values.shape[-1] <= values.numel() <= MOST_ROWS
    rows = values if has_rows and not tensor.is_complex() else None
    spread = None if rows is None else float(rows.std(-1, correction=0).nan_to_num(math.inf).min())
    return TensorSummary(
        role=role,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        n_nonfinite=int((~_finite_places(tensor)).sum()),
        lowest=float(finite.min()) if some else None,
        highest=float(finite.max()) if some else None,
        mean=float(finite.mean()) if some else None,
        n_zero=int((finite == 0).sum()),
        least_row_spread=spread if spread is not None and math.isfinite(spread) else None,
    )


def channel(tensor: Tensor) -> Channel | None:
    """The index along one axis that holds the largest part of the values that are not finite; None where they
    lie everywhere, the tensor has no axis of several places, or is sparse."""
    if tensor.is_sparse:
        return None
    bad = ~_finite_places(tensor)
    total = int(bad.sum())
    best: Channel | None = None
    for axis in range(max(0, tensor.ndim - AXES_LOOKED_AT), tensor.ndim):
        if tensor.shape[axis] < 2:
            continue
        counts = bad.movedim(axis, 0).flatten(1).sum(1) if tensor.ndim > 1 else bad.long()
        index = int(counts.argmax())
        here = int(counts[index])
        is_sharper = (
            best is None or here * tensor.shape[axis] >= best.n_nonfinite * tensor.shape[best.axis]
        )
        if is_sharper and here * tensor.shape[axis] > total:
            best = Channel(
                axis=axis, index=index, n_nonfinite=here, n_nonfinite_elsewhere=total - here
            )
    return best


def masked_rows(tensor: Tensor) -> int:
    """The number of rows along the last axis that hold nothing but negative infinity."""
    if not tensor.ndim:
        return 0
    return int((plain(tensor) == -math.inf).all(-1).sum())


def _finite_places(tensor: Tensor) -> Tensor:
    """Booleans of the tensor's shape; of a sparse one those of what it stores."""
    return torch.isfinite(tensor.detach()._values() if tensor.is_sparse else tensor.detach())


def _exact(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """The largest magnitude that the operator gives in fp64, on copies; None of one that draws random
    numbers, whose second call would leave the step others."""
    draws = torch.Tag.nondeterministic_seeded in func.tags
    if draws or not func._schema.returns or kwargs.get("out") is not None:
        return None
    called = (args, {**kwargs, "dtype": torch.float64} if kwargs.get("dtype") else kwargs)
    wide_args, wide_kwargs = tree_map(_widened_copy, called)
    try:
        out = func(*wide_args, **wide_kwargs)
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return None  # Kernels of one type alone.
    found = [float(plain(each).abs().max()) for each in _followed(out) if each.numel()]
    largest = max(found, default=math.nan)
    return largest if math.isfinite(largest) else None


def _widened_copy(each: object) -> object:
    """A copy of a tensor of any type: an operator that works in place must not reach the step's own."""
    if not isinstance(each, Tensor):
        return each
    if not is_followed(each):
        return each.detach().clone()
    dtype = torch.complex128 if each.is_complex() else torch.float64
    return each.detach().to(dtype, copy=True)


def _inputs(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[TensorSummary, ...]:
    names = [each.name for each in func._schema.arguments]
    called = {**dict(zip(names, args, strict=False)), **kwargs}
    return tuple(
        summary(each, name)
        for name, value in called.items()
        for each in _followed(value)[:1]
        if each.numel()
    )


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors among the arguments that the operator writes."""
    found: list[Tensor] = []
    for n, each in enumerate(func._schema.arguments):
        if each.alias_info is not None and each.alias_info.is_write:
            found += _followed(args[n] if n < len(args) else kwargs.get(each.name))
    return found


def _followed(found: object) -> list[Tensor]:
    return [each for each in tree_leaves(found) if is_followed(each)]


def _is_whole(tensor: Tensor) -> bool:
    values = plain(tensor)
    return values.numel() * values.element_size() >= values.untyped_storage().nbytes()


def _address(tensor: Tensor) -> int:
    address: int = plain(tensor).untyped_storage()._cdata
    return address
