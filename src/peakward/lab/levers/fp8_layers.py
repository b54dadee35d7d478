"""Lever `fp8` on a user's module: the linear layers that compute faster in fp8 do so, in place.

A forward pass shows the shapes that each layer is called with. Each distinct shape is timed once in bf16, as
autocast runs it, and in fp8, and a layer is taken where fp8 wins at all of its shapes.
"""

import copy
import math
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from peakward.kernels.ops.forwards import before_first_call
from peakward.kernels.ops.fp8_linear import reference
from peakward.kernels.ops.fp8_linear.api import SIDE, fp8_linear, fp8_scales
from peakward.kernels.ops.fp8_modules.api import (
    HALVES,
    Linear,
    in_fp8,
    is_named,
    put_in,
    unfit,
)
from peakward.kernels.ops.launchable import autocast_dtype
from peakward.kernels.ops.linear_cross_entropy import api as linear_cross_entropy
from peakward.lab.rewriting.rewriting import left_as_it_is
from peakward.levers.axis import Undo
from peakward.levers.precision import said
from peakward.records.errors import PeakwardError
from peakward.records.linear_layers import LinearChoice, LinearTimes

_IMPL = "_compiled_call_impl"
N_ROUNDS = 3
"""The times of a shape are medians over these turns of bf16 and fp8."""
OF_LOSS = "is left to the loss, which computes the output layer"
NOT_NAMED = "is none of those that were chosen before"
LINEAR_LIKE = ("Conv1D",)
"""Names of classes that are linear layers and no nn.Linear: transformers' GPT-2 is made of one."""


class Shape(NamedTuple):
    """A linear layer on one batch, as far as its time depends on it."""

    tokens: int
    inputs: int
    outputs: int
    bias: bool
    dtype: torch.dtype
    """The type that x comes in, or that autocast casts it to."""
    stored: torch.dtype
    """The weight's type."""
    of_x: bool
    """Whether the backward pass computes the gradient of x."""
    of_weight: bool


class Times(NamedTuple):
    """Seconds of a shape, forward and backward."""

    plain_s: float
    fp8_s: float


class Survey(NamedTuple):
    """The linear layers of a module."""

    layers: dict[str, nn.Linear]
    """Layers that could compute in fp8, by their path."""
    left: dict[str, str]
    """The reason for each of the others."""


Clock = Callable[[Shape, torch.device], Times]
_choices: "weakref.WeakKeyDictionary[nn.Module, LinearChoice]" = weakref.WeakKeyDictionary()


def survey(module: nn.Module) -> Survey:
    """The layers of a module by what they are; nothing is run."""
    layers: dict[str, nn.Linear] = {}
    left: dict[str, str] = {}
    holders = _holders(module)
    for name, each in module.named_modules():
        if type(each).__name__ in LINEAR_LIKE:
            left[name] = f"is a {type(each).__name__}, no nn.Linear"
        if not isinstance(each, nn.Linear):
            continue
        reason = unfit(each) or _shared(name, each, holders)
        if reason is None:
            layers[name] = each
        else:
            left[name] = reason
    return Survey(layers, left)


def _holders(module: nn.Module) -> dict[int, list[str]]:
    """The paths of the parameters that lie in each storage."""
    found: dict[int, list[str]] = {}
    for name, each in module.named_parameters(remove_duplicate=False):
        found.setdefault(_storage(each), []).append(name)
    return found


def _storage(tensor: Tensor) -> int:
    """Tensors on the meta device have no address, and storages of their own."""
    return tensor.untyped_storage()._cdata


def _shared(name: str, layer: nn.Linear, holders: Mapping[int, list[str]]) -> str | None:
    own = f"{name}.weight".lstrip(".")
    others = [each for each in holders.get(_storage(layer.weight), ()) if each != own]
    return f"shares its weight with {others[0]}" if others else None


def calls(layers: Mapping[str, nn.Linear], forward: Callable[[], object]) -> dict[str, set[Shape]]:
    """The shapes that each layer is called with in a forward pass, in the order of the last calls."""
    seen: dict[str, set[Shape]] = {}

    def see(name: str) -> Callable[..., None]:
        def seeing(layer: nn.Linear, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = args[0] if args else kwargs["input"]
            shapes = seen.pop(name, set())
            seen[name] = shapes | {_shape(layer, x)}

        return seeing

    hooks = [
        each.register_forward_pre_hook(see(name), with_kwargs=True) for name, each in layers.items()
    ]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    return seen


@contextmanager
def _calls_in_order(module: nn.Module) -> Iterator[list[str]]:
    """The names of linear layers, the unfit ones too, as they are called while it lasts."""
    order: list[str] = []
    hooks = [
        each.register_forward_pre_hook(lambda *_, name=name: order.append(name))
        for name, each in module.named_modules()
        if isinstance(each, nn.Linear)
    ]
    try:
        yield order
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def eagerly(module: nn.Module) -> Iterator[None]:
    """While it lasts, a module and all in it run past what they are compiled as, or would be at a call."""
    held = {
        each: vars(each).pop(_IMPL)
        for each in module.modules()
        if vars(each).get(_IMPL) is not None
    }
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for each, impl in held.items():
            setattr(each, _IMPL, impl)


def _shape(layer: nn.Linear, x: Tensor) -> Shape:
    differentiates = torch.is_grad_enabled()
    return Shape(
        tokens=math.prod(x.shape[:-1]),
        inputs=layer.in_features,
        outputs=layer.out_features,
        bias=layer.bias is not None,
        dtype=autocast_dtype(x.device) or x.dtype,
        stored=layer.weight.dtype,
        of_x=differentiates and x.requires_grad,
        of_weight=differentiates and layer.weight.requires_grad,
    )


def fits(shape: Shape) -> bool:
    """Whether the shape can be computed in fp8. What is kept out of autocast in fp32 is meant to be exact."""
    return shape.tokens > 0 and shape.tokens % SIDE == 0 and shape.dtype in HALVES


def _unfit_calls(shapes: Iterable[Shape]) -> str:
    if strange := sorted({str(each.dtype)[6:] for each in shapes if each.dtype not in HALVES}):
        return f"is called with {' and '.join(strange)}"
    tokens = ", ".join(map(str, sorted({each.tokens for each in shapes})))
    return f"has tokens that are no multiple of {SIDE} ({tokens})"


def winners(seen: Mapping[str, set[Shape]], times: Mapping[Shape, Times]) -> set[str]:
    """The layers that are faster in fp8 at each of their shapes; a shape without times has not won."""
    won = {shape for shape, each in times.items() if each.fp8_s < each.plain_s}
    return {name for name, shapes in seen.items() if shapes and shapes <= won}


@cache
def timed(shape: Shape, place: torch.device) -> Times:
    """Times a shape on a GPU, in turns, once a process.

    Raises:
        PeakwardError: it would be on a CPU.
    """
    if place.type != "cuda":
        raise PeakwardError(
            f"expected a GPU of compute capability 8.9 or later for precision fp8, got {place.type}: take "
            "bf16-mixed"
        )
    from peakward.kernels.ops.tuning import seconds

    with torch.cuda.device(place):
        scaled = partial(fp8_linear, scales=fp8_scales(place))
        calls_of = [_call(shape, place, linear) for linear in (F.linear, scaled)]
        turns = [[seconds(call) for call in calls_of] for _ in range(N_ROUNDS)]
    return Times(*(median(column) for column in zip(*turns, strict=True)))


def _call(
    shape: Shape, place: torch.device, linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
) -> Callable[[], tuple[Tensor, ...]]:
    """Forward, and backward where there is one, under autocast as the step has it."""
    x = torch.randn(shape.tokens, shape.inputs, dtype=shape.dtype, device=place)
    weight = torch.randn(shape.outputs, shape.inputs, dtype=shape.stored, device=place)
    bias = torch.zeros(shape.outputs, dtype=shape.stored, device=place) if shape.bias else None
    wanted = [each for each, is_so in ((x, shape.of_x), (weight, shape.of_weight)) if is_so]
    if bias is not None and shape.of_weight:
        wanted.append(bias)
    for each in wanted:
        each.requires_grad_()
    upstream = torch.randn(shape.tokens, shape.outputs, dtype=shape.dtype, device=place)

    def call() -> tuple[Tensor, ...]:
        with (
            torch.set_grad_enabled(bool(wanted)),
            torch.autocast(
                place.type, shape.dtype, enabled=shape.dtype.itemsize == 2, cache_enabled=False
            ),
        ):
            y = linear(x, weight, bias)
        return torch.autograd.grad(y, wanted, upstream) if wanted else (y,)

    return call


def choose(
    module: nn.Module,
    forward: Callable[[], object],
    *,
    loss: str = "torch",
    clock: Clock | None = timed,
    names: Sequence[str] | None = None,
    linear: Linear = in_fp8,
) -> Undo:
    """Let the module's linear layers that win compute in fp8, in place.

    Args:
        forward: a forward pass of the module as steps run it. Buffers and the states of random numbers are
            put back.
        loss: the step's; one that computes the output layer keeps the linear layer that is called last.
        clock: gives the times of a shape; None: every layer that can be in fp8 is taken, for a check of
            numbers on other sizes than those that are timed.
        names: the layers that may be taken, as `kernels.fp8_layers` has them. None: all.
        linear: computes a layer.

    Returns:
        What takes it back. Until then `choice_in` has what was chosen.

    Raises:
        PeakwardError: no layer can be in fp8, or none wins; the module is as it was.
    """
    layers, seen, left = _candidates(module, forward, loss, names)
    place = next(module.parameters()).device
    shapes = dict.fromkeys(shape for each in seen.values() for shape in each)
    with left_as_it_is(module):  # Operands are drawn.
        times = {} if clock is None else {shape: clock(shape, place) for shape in shapes}
    taken = set(seen) if clock is None else winners(seen, times)
    choice = LinearChoice(
        layers=tuple(_times(shape, seen, times, taken) for shape in shapes),
        left=tuple(_reasons(left)),
        taken=tuple(_patterns(taken, [name for name, _ in module.named_modules()])),
    )
    if not taken:
        raise PeakwardError(
            "expected a module with linear layers (nn.Linear) that compute faster in fp8, got "
            f"{type(module).__name__} with none: {'; '.join(said(choice)) or 'it has no nn.Linear'}. Take "
            "bf16-mixed"
        )
    take_back = put_in([layers[name] for name in layers if name in taken], linear)
    _choices[module] = choice

    def undo() -> None:
        _choices.pop(module, None)
        take_back()

    return undo


def _candidates(
    module: nn.Module, forward: Callable[[], object], loss: str, names: Sequence[str] | None
) -> tuple[dict[str, nn.Linear], dict[str, set[Shape]], dict[str, str]]:
    """The layers by what they are, the shapes of those that can be taken, and the reason for each other one;
    arguments as of `choose`."""
    layers, left = survey(module)
    with left_as_it_is(module), _calls_in_order(module) as order:
        seen = calls(layers, forward)
    left |= {name: "is not called itself" for name in layers if name not in seen}
    for name, each in layers.items():
        if reason := unfit(each):  # That call was the first of a part with a choice of its own.
            left[name] = reason
            seen.pop(name, None)
    head = next(reversed(order), None)
    if head in seen and loss in linear_cross_entropy.IMPLEMENTATIONS:
        left[head] = OF_LOSS
        seen.pop(head)
    for name in list(seen):
        if names is not None and not any(is_named(name, each) for each in names):
            left[name] = NOT_NAMED
            seen.pop(name)
        elif not all(map(fits, seen[name])):
            left[name] = _unfit_calls(seen.pop(name))
    return layers, seen, left


def choice_in(module: nn.Module | None) -> LinearChoice | None:
    """The choice that is at work in a module; None where nothing is, or not yet."""
    return None if module is None else _choices.get(module)


def rounded_by_torch(layer: nn.Linear, x: Tensor) -> Tensor:
    """A layer's roundings by torch's own operators, each by the tensor's own scale."""
    return reference.linear(x, layer.weight, layer.bias)


def every_layer(module: nn.Module) -> Undo:
    """Let each linear layer that could compute in fp8 do so, and return what takes it back; nothing is run.

    Raises:
        PeakwardError: there is none.
    """
    found = survey(module)
    if not found.layers:
        raise PeakwardError(
            f"expected a module with linear layers (nn.Linear) that can compute in fp8, got "
            f"{type(module).__name__} with none: {'; '.join(_reasons(found.left)) or 'it has no nn.Linear'}"
        )
    return put_in(found.layers.values(), in_fp8)


def choose_at_first_call(
    module: nn.Module, *, trains: bool, loss: str = "torch", linear: Linear = in_fp8
) -> Undo:
    """`choose` by the module's next call, before it; where it trains, by the next that asks for gradients.

    That call is made on copies of its arguments first, so that a cache is not filled twice. What a module's
    code counts or collects in its own attributes is counted twice.
    """
    undos: list[Undo] = []

    def prepare(*args: Any, **kwargs: Any) -> None:
        args, kwargs = _apart((args, kwargs))
        called = partial(module, *args, **kwargs)
        with eagerly(module):
            undos.append(choose(module, called, loss=loss, clock=timed, linear=linear))

    undos.append(
        before_first_call(module, prepare, counts=lambda: torch.is_grad_enabled() or not trains)
    )

    def taken_back() -> None:
        has_chosen = len(undos) > 1
        while undos:
            undos.pop()()
        if has_chosen:
            # Code that was compiled before a change can be taken for the code after it (pytorch#117265).
            torch._dynamo.reset()

    return taken_back


def _apart(given: Any) -> Any:
    """A deep copy, of tensors in the middle of a graph too."""
    memo: dict[int, Any] = {}
    for each in tree_leaves(given):
        if isinstance(each, Tensor):
            memo[id(each)] = each.detach().clone().requires_grad_(each.requires_grad)
    return copy.deepcopy(given, memo)


def _patterns(taken: set[str], names: Sequence[str]) -> Iterator[str]:
    """Paths with * for the numbers that name the layers that are taken, and no other module."""
    left = [name for name in names if name in taken]
    while left:
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", left[0])
        named = {name for name in names if is_named(name, pattern)}
        yield pattern if named <= taken else left[0]
        left = [name for name in left if name not in named] if named <= taken else left[1:]


def _times(
    shape: Shape, seen: Mapping[str, set[Shape]], times: Mapping[Shape, Times], taken: set[str]
) -> LinearTimes:
    names = [name for name, shapes in seen.items() if shape in shapes]
    found = times.get(shape)
    return LinearTimes(
        tokens=shape.tokens,
        inputs=shape.inputs,
        outputs=shape.outputs,
        bias=shape.bias,
        n_layers=len(names),
        n_taken=len(taken.intersection(names)),
        plain_s=None if found is None else found.plain_s,
        fp8_s=None if found is None else found.fp8_s,
    )


def _reasons(left: Mapping[str, str]) -> Iterable[str]:
    """A sentence for the layers that are left for one reason at one place of every block."""
    alike: dict[tuple[str, str], int] = {}
    for name, reason in left.items():
        key = re.sub(r"\b\d+\b", "*", name), re.sub(r"\b\d+(?=\.)", "*", reason)
        alike[key] = alike.get(key, 0) + 1
    for (name, reason), n in alike.items():
        yield f"{name or 'the module itself'} {reason}" + (f" ({n} layers)" if n > 1 else "")
