"""Gives modules another forward pass, in place, and takes it back."""

import copyreg
import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from peakward.levers.axis import Undo

Call = Callable[..., Any]
Around = Callable[[Call, tuple[Any, ...], dict[str, Any]], Any]
"""Calls a forward pass with its arguments, and does something around it."""
Method = Callable[..., Any]
"""A forward pass of a class, with `self`."""
_OWN = "_forward_of_instance"
_METHOD = "_method_of_wrapper"
_undone: "weakref.WeakSet[type[nn.Module]]" = weakref.WeakSet()


def wrap_forward(modules: Iterable[nn.Module], around: Around) -> Undo:
    """Give each module a forward pass that goes through `around`, in place, and return what takes it back.
    Of several that were given to one module each can be taken back before the others.

    The class changes and not the instance: a function that an instance holds is not copied with it, so that
    the forward pass of a deep copy would compute with the original's parameters. Modules of one class share
    the new one, or Dynamo would compile each of them anew. A copy of the module, and a saved one, is of the
    class that it had at first.
    """

    def passing(kind: type[nn.Module], own: Call | None) -> Method:
        @functools.wraps(kind.forward)
        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # Dynamo breaks the graph at `kind.forward.__get__(self)`: the loss is then in another one
            # than its logits.
            inner = functools.partial(kind.forward, self) if own is None else own
            return around(inner, args, kwargs)

        return forward

    return _changed(modules, "forward", passing)


def give_forward(modules: Iterable[nn.Module], forward: Method) -> Undo:
    """Give each module another forward pass, in place, and return what takes it back, as `wrap_forward` does.

    Args:
        modules: without a forward pass of the instance.
        forward: a method; it calls nothing of the one before.
    """
    return _changed(modules, "forward", lambda _kind, _own: forward)


def before_first_call(module: nn.Module, prepare: Callable[..., None]) -> Undo:
    """Let `prepare` have the arguments of the module's next call before it, and return what takes that back.

    It stands before torch's own `__call__`, and so before hooks and what the module is compiled as.
    """
    is_waiting = True

    def calling(kind: type[nn.Module], _own: Call | None) -> Method:
        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self is module:
                begin(*args, **kwargs)
            return kind.__call__(self, *args, **kwargs)

        return call

    take_back = _changed([module], "__call__", calling)

    def undo() -> None:
        nonlocal is_waiting
        if is_waiting:
            is_waiting = False
            take_back()

    def once(*args: Any, **kwargs: Any) -> None:
        if is_waiting:
            undo()
            prepare(*args, **kwargs)

    # What torch.compile made of the module before goes on calling this.
    begin = torch.compiler.disable(once)

    return undo


def _changed(
    modules: Iterable[nn.Module],
    name: str,
    make: Callable[[type[nn.Module], Call | None], Method],
) -> Undo:
    """Give each module a class with another method of that name; `make` is given the class before, and the
    forward pass of an instance that has one."""
    found = list(modules)
    kinds = dict.fromkeys(map(type, found))
    shared = {kind: _wrapped(kind, name, make(kind, None)) for kind in kinds}
    made = []
    for each in found:
        kind = type(each)
        own = vars(each).pop("forward", None) if name == "forward" else None
        made.append(shared[kind] if own is None else _wrapped(kind, name, make(kind, own), own))
        each.__class__ = made[-1]

    def undo() -> None:
        for kind in dict.fromkeys(made):
            _pass_on(kind)
            _undone.add(kind)
        for each in found:
            # What was put around it later stands on it until that is taken back too.
            while (gone := type(each)) in _undone:
                each.__class__ = gone.__mro__[1]
                if (own := vars(gone)[_OWN]) is not None:
                    each.forward = own

    return undo


def _wrapped(
    kind: type[nn.Module], name: str, method: Method, own: Call | None = None
) -> type[nn.Module]:
    """The class with another method; `own` is the forward pass of an instance, where it has one."""

    first, held = kind, own
    while _OWN in vars(first):
        held = vars(first)[_OWN] or held
        first = first.__mro__[1]

    def reduced(self: nn.Module, _protocol: int) -> Any:
        state = self.__getstate__()
        plain = state if held is None else {**state, "forward": held}
        return copyreg._reconstructor, (first, object, None), plain  # type: ignore[attr-defined]

    told = {each: getattr(kind, each) for each in ("__module__", "__qualname__", "__doc__")}
    members = {**told, name: method, "__reduce_ex__": reduced, _OWN: own, _METHOD: name}
    return type(kind.__name__, (kind,), members)


def _pass_on(kind: type[nn.Module]) -> None:
    """Let a wrapped class do as what it took the place of, for those that were wrapped again."""
    own: Call | None = vars(kind)[_OWN]
    if own is None:
        delattr(kind, vars(kind)[_METHOD])
    else:
        kind.forward = lambda _self, *args, **kwargs: own(*args, **kwargs)
