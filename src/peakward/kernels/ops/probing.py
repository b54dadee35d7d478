"""Calls modules on made-up values to find what they compute, whatever their class and their code.

A formula is held to a module in fp64, values and gradients, in training and in evaluation. Then each
kind of call by types is tried, because a cast, a clamp or a branch may be of one type alone.
"""

import copy
import inspect
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

TYPES = (torch.float32, torch.float16, torch.bfloat16)
CASTS = (None, torch.bfloat16, torch.float16)
"""Autocast off, and to its types."""
Kind = tuple[torch.dtype, torch.dtype | None, torch.dtype | None]
"""The types of a call: of what goes in, of the parameters (None without any), and autocast's (None: off)."""


class Results(NamedTuple):
    """The type of the result in each kind of call in which a formula holds, on one kind of device: autocast
    casts other operators on a CPU than on a GPU."""

    device: str
    types: tuple[tuple[Kind, torch.dtype], ...]


VALUES, GRADIENTS = 2e-6, 2e-5
"""Bounds in fp64, of a row's largest: modules may compute in fp32 inside, whose rounding is 6e-8."""
ROUNDINGS = 8
"""Epsilons of the coarsest type by which a module may be off in a kind of call: each of its own operators
rounds."""


Found = TypeVar("Found", bound=Hashable)


def found_in(
    module: nn.Module, look: Callable[[nn.Module], Found | None]
) -> dict[Found, list[nn.Module]]:
    """The parts of a module by what a look finds in them. Of parts that are alike one is looked at."""
    seen: dict[Hashable, Found | None] = {}
    parts: dict[Found, list[nn.Module]] = {}
    for each in module.modules():
        key = _likeness(each)
        if key not in seen:
            seen[key] = look(each)
        found = seen[key]
        if found is not None:
            parts.setdefault(found, []).append(each)
    return parts


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_HOOKS = tuple(name for name in _OF_EVERY_MODULE if name.endswith("_hooks"))


def _likeness(module: nn.Module) -> Hashable:
    """Equal for modules that differ in the values of parameters and buffers at most. What cannot be compared
    is like itself alone."""
    own = (
        (name, type(each), each if _is_plain(each) else id(each))
        for name, each in vars(module).items()
        if name not in _OF_EVERY_MODULE
    )
    tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    return (
        type(module),
        tuple(own),
        tuple((name, each.shape, each.device) for name, each in tensors),
        tuple((name, _likeness(each)) for name, each in module.named_children()),
    )


def _is_plain(value: object) -> bool:
    """Whether equal values are the same to all code."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str | torch.dtype | None)


def probed(look: Callable[[], Found | None], device: torch.device) -> Found | None:
    """The result of a look at a module; None where the module raises, called with what it was not written
    for."""
    try:
        with probing(device):
            return look()
    except Exception:  # noqa: BLE001  a probe calls code of the user's, which may raise anything
        return None


@contextmanager
def probing(device: torch.device) -> Iterator[None]:
    """While it lasts, calls are differentiated, not cast and warn of nothing; random states are put back at
    the end."""
    with (
        warnings.catch_warnings(action="ignore"),
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        torch.inference_mode(False),
        torch.enable_grad(),
        autocast(device, None),
    ):
        yield


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[None]:
    """Autocast to that type, or none, without the cache: a probe's weights are not to be kept."""
    return torch.autocast(device.type, dtype, enabled=dtype is not None, cache_enabled=False)


def copied(module: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A copy that a probe may change, without hooks: they may hold anything, and do anything.

    Args:
        memo: what takes the place of parts, as of `copy.deepcopy`.
    """
    hooks = (getattr(each, name) for each in module.modules() for name in _HOOKS)
    return copy.deepcopy(module, {id(each): OrderedDict() for each in hooks} | (memo or {}))


def stand_in(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy with parameters of random values around 1."""
    made = copied(module)
    for each in made.parameters():
        each.data = (drawn(each.shape, each.numel()).sigmoid() + 0.5).to(each.device, dtype)
        each.requires_grad_(True)
    return made


def takes_one(module: nn.Module) -> bool:
    """Whether the class's forward pass takes one argument and no other, so that it can be called for it."""
    if "forward" in vars(module):
        return False
    taken = list(inspect.signature(module.forward).parameters.values())
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len(taken) == 1 and taken[0].kind in plain


def drawn(shape: Sequence[int], seed: int) -> Tensor:
    """Standard normal numbers in fp64 on the CPU, whatever torch's default device and type are."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")


def rows(shape: Sequence[int], scales: Sequence[float], device: torch.device) -> Tensor:
    """Random rows in fp64, one scale after another, each with a mean of half its scale."""
    n_rows = math.prod(shape[:-1])
    scale = torch.tensor(scales, dtype=torch.float64, device="cpu").repeat(n_rows)[:n_rows]
    return ((drawn(shape, 1) + 0.5) * scale.view(*shape[:-1], 1)).to(device)


def agrees(found: Any, expected: Tensor, bound: float) -> bool:
    """Whether it is a tensor of that shape which differs by no more than `bound` of each row's largest."""
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        return False
    given, right = found.detach().double(), expected.detach().double()
    return bool(((given - right).abs() <= bound * right.abs().amax(-1, keepdim=True)).all())


def computes(module: nn.Module, expected: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether a stand-in in fp64 or fp32 has a function's values on x, and its gradients of x and of the
    parameters, in training and in evaluation, each time that it is asked."""
    leaves = tuple(module.parameters())
    x = x.to(leaves[0].dtype if leaves else x.dtype).requires_grad_()
    right = expected(x.double())
    wanted = torch.autograd.grad(right, (x, *leaves), _cotangent(right))
    for mode in (True, False, True):
        found = module.train(mode).forward(x)
        if not agrees(found, right, VALUES):
            return False
        given = _cotangent(right).to(found.dtype)
        gradients = torch.autograd.grad(found, (x, *leaves), given, allow_unused=True)
        if not all(agrees(*pair, GRADIENTS) for pair in zip(gradients, wanted, strict=True)):
            return False
    return True


def is_nan_as(module: nn.Module, expected: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether a stand-in gives NaN where a function does: a part may guard against it."""
    with torch.no_grad():
        return torch.equal(module.forward(x).isnan(), expected(x.double()).isnan())


def _cotangent(y: Tensor) -> Tensor:
    return drawn(y.shape, 2).to(y.device)


def results(module: nn.Module, expected: Callable[[Tensor], Tensor], x: Tensor) -> Results:
    """The kinds of calls in which the result of a stand-in is a function's but for rounding, with its type.

    Args:
        module: Its parameters are cast to each type in turn.
        expected: a function in fp64 of x and of the parameters that the stand-in then has.
    """
    parameters = list(module.parameters())
    found: list[tuple[Kind, torch.dtype]] = []
    for own in TYPES if parameters else (None,):
        for each in parameters if own is not None else ():
            each.data = each.data.to(own)
        for given in TYPES:
            rounded = x.detach().to(given)
            with torch.no_grad():
                right = expected(rounded.double())
            for cast in CASTS:
                kind = given, own, cast
                dtype = _type_of_result(module, rounded, cast, right, kind)
                if dtype is not None:
                    found.append((kind, dtype))
    return Results(x.device.type, tuple(found))


def _type_of_result(
    module: nn.Module, x: Tensor, cast: torch.dtype | None, right: Tensor, kind: Kind
) -> torch.dtype | None:
    """The result's type, where its values are right; None where they are not, or it refuses the call."""
    with autocast(x.device, cast):
        made = tried(module, x)
    coarsest = max(torch.finfo(each).eps for each in kind if each is not None)
    is_right = agrees(made, right, ROUNDINGS * coarsest) and made.dtype in TYPES
    return made.dtype if is_right else None


def tried(module: nn.Module, x: Tensor) -> Any:
    """The result of a stand-in for x; None where it refuses it."""
    try:
        with torch.no_grad():
            return module.forward(x)
    except (RuntimeError, TypeError, ValueError):
        return None


class Types:
    """The types of results, asked for in calls.

    Args:
        look: gives those of what is called, on a device that they were not asked for on before.
    """

    def __init__(
        self, results: Results, look: Callable[[Any, torch.device], Results | None]
    ) -> None:
        self._look, self._known = look, {results.device: dict(results.types)}

    def of(self, called: Any, x: Tensor, own: torch.dtype | None) -> torch.dtype | None:
        """The type of the result for x and parameters of a type; None where the formula does not hold."""
        device = x.device.type
        known = self._known.get(device)
        if known is None:
            if torch.compiler.is_compiling():
                return None
            results = self._look(called, x.device)
            known = self._known[device] = {} if results is None else dict(results.types)
        cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return known.get((x.dtype, own, cast))
