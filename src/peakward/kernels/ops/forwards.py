"""Gives modules another forward pass, in place, and takes it back."""

import copyreg
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

Call = Callable[..., Any]
Around = Callable[[Call, tuple[Any, ...], dict[str, Any]], Any]
"""Calls a forward pass with its arguments, and does something around it."""
Undo = Callable[[], None]
Made = Callable[[type[nn.Module], Call | None], Call]
"""The forward function of a module, from its class and, where it has one, the instance's own."""


class Replaced(NamedTuple):
    """How many modules of a model were changed, and what takes it back."""

    n: int
    undo: Undo


What = TypeVar("What")
_OWN = "_forward_of_instance"
_METHOD = "_method_in_its_place"
"""The name of the method that a class made here has of its own."""
STATE = "_state_of_forward_"
"""Attributes whose names begin so hold tensors of a forward pass that a module was given here. They are no
buffers: averages of models pair these by position, DistributedDataParallel broadcasts them, and each finds
others after a change and its undoing. Copies and saved modules leave them out."""
_undone: "weakref.WeakSet[type[nn.Module]]" = weakref.WeakSet()


def states(module: nn.Module) -> list[Tensor]:
    """The tensors in the `STATE` of a module and all in it, for what puts a module's state back."""
    return [
        held
        for each in module.modules()
        for name, held in vars(each).items()
        if name.startswith(STATE)
    ]


def replace_forwards(
    found: Mapping[What, list[nn.Module]], made: Callable[[What], Made]
) -> Replaced:
    """Give each group of modules the forward functions that are made for what was found in them."""
    undos = [give_forward(modules, made(what)) for what, modules in found.items()]

    def undo() -> None:
        for back in reversed(undos):
            back()

    return Replaced(sum(map(len, found.values())), undo)


def wrap_forward(modules: Iterable[nn.Module], around: Around) -> Undo:
    """Give each module a forward pass that goes through `around`, as `give_forward`."""

    def made(kind: type[nn.Module], own: Call | None) -> Call:
        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # Dynamo breaks the graph at `kind.forward.__get__(self)`: the loss is then in another one
            # than its logits.
            inner = functools.partial(kind.forward, self) if own is None else own
            return around(inner, args, kwargs)

        return forward

    return give_forward(modules, made)


def give_forward(modules: Iterable[nn.Module], made: Made) -> Undo:
    """Give each module the forward function that `made` makes for its class, in place, and return what takes
    it back. Of several that were given to one module each can be taken back before the others.

    The class changes and not the instance: a function that an instance holds is not copied with it, so that
    the forward pass of a deep copy would compute with the original's parameters. Modules of one class share
    the new one, or Dynamo would compile each of them anew. A copy of the module, and a saved one, is of the
    class before all of them.
    """
    found = list(dict.fromkeys(modules))
    shared = {kind: _with_forward(kind, made) for kind in dict.fromkeys(map(type, found))}
    given = []
    for each in found:
        kind, own = type(each), vars(each).pop("forward", None)
        given.append(shared[kind] if own is None else _with_forward(kind, made, own))
        each.__class__ = given[-1]
    return lambda: _take_back(found, given)


def after_moves(modules: Iterable[nn.Module], moved: Callable[[Any], object]) -> Undo:
    """Let `moved` have each module after it was moved or cast, as by `.to`; return what takes that back."""
    found = list(dict.fromkeys(modules))

    def following(kind: type[nn.Module]) -> type[nn.Module]:
        def apply(self: nn.Module, fn: Call, recurse: bool = True) -> nn.Module:
            kind._apply(self, fn, recurse)
            moved(self)
            return self

        return _with_method(kind, "_apply", apply)

    shared = {kind: following(kind) for kind in dict.fromkeys(map(type, found))}
    given = [shared[type(each)] for each in found]
    for each, kind in zip(found, given, strict=True):
        each.__class__ = kind
    return lambda: _take_back(found, given)


def before_first_call(
    module: nn.Module, prepare: Callable[..., None], *, counts: Callable[[], bool] = lambda: True
) -> Undo:
    """Let `prepare` have the arguments of the module's next call that counts before it, and return what takes
    that back.

    It stands before torch's own `__call__`, and so before hooks and what the module is compiled as.
    """
    is_waiting, kind = True, type(module)

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self is module:
            begin(*args, **kwargs)
        return kind.__call__(self, *args, **kwargs)

    waiting = module.__class__ = _with_method(kind, "__call__", call)

    def undo() -> None:
        nonlocal is_waiting
        if is_waiting:
            is_waiting = False
            _take_back([module], [waiting])

    def once(*args: Any, **kwargs: Any) -> None:
        if is_waiting and counts():
            undo()
            prepare(*args, **kwargs)

    # What torch.compile made of the module before goes on calling this.
    begin = torch.compiler.disable(once)
    return undo


def _take_back(modules: Iterable[nn.Module], given: Iterable[type[nn.Module]]) -> None:
    for kind in dict.fromkeys(given):
        _pass_on(kind)
        _undone.add(kind)
    for each in modules:
        # What was put around it later stands on it until that is taken back too.
        while (gone := type(each)) in _undone:
            each.__class__ = gone.__mro__[1]
            if (own := vars(gone)[_OWN]) is not None:
                each.forward = own


def _with_forward(kind: type[nn.Module], made: Made, own: Call | None = None) -> type[nn.Module]:
    """The class with another forward pass; `own` is that of an instance, where it has one."""
    return _with_method(kind, "forward", functools.wraps(kind.forward)(made(kind, own)), own)


def _with_method(
    kind: type[nn.Module], name: str, method: Call, own: Call | None = None
) -> type[nn.Module]:
    """The class with another method of that name; `own` is an instance's forward pass."""

    def reduced(self: nn.Module, _protocol: int) -> Any:
        first, held = kind, own
        while _OWN in vars(first):
            first, held = first.__mro__[1], held or vars(first)[_OWN]
        state = self.__getstate__().items()
        plain = {name: each for name, each in state if not name.startswith(STATE)}
        if held is not None:
            plain["forward"] = held
        return copyreg._reconstructor, (first, object, None), plain  # type: ignore[attr-defined]

    told = {each: getattr(kind, each) for each in ("__module__", "__qualname__", "__doc__")}
    members = {**told, name: method, "__reduce_ex__": reduced, _OWN: own, _METHOD: name}
    return type(kind.__name__, (kind,), members)


def _pass_on(kind: type[nn.Module]) -> None:
    """Let a class with another method do as what it took the place of, for those that were given one
    again."""
    own: Call | None = vars(kind)[_OWN]
    if own is None:
        delattr(kind, vars(kind)[_METHOD])
    else:
        kind.forward = lambda _self, *args, **kwargs: own(*args, **kwargs)
