"""Replaces parts inside a module that nobody prepared for it, without touching its source, and takes it back.

`replace_part` says what is wanted. `settle` runs the module's forward pass, finds the smallest modules that
the part can be replaced in, and lets these run through `backend.Backend`; the first call of the module does
it otherwise. `compiled` hands the module's blocks to torch's compiler in the same way.
"""

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from peakward.kernels.ops.attention.sdpa import BACKENDS
from peakward.kernels.ops.forwards import states, wrap_forward
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.given_module import repeated_blocks
from peakward.lab.rewriting import owners
from peakward.lab.rewriting.attention import Outcome, Replaced
from peakward.lab.rewriting.backend import Backend, eager, inductor
from peakward.lab.rewriting.dataflow import Refused
from peakward.lab.rewriting.owners import Chain
from peakward.levers.axis import Undo
from peakward.records.case import Compile, CompileScope
from peakward.records.errors import PeakwardError

_SETTINGS: dict[str, Any] = {
    "skip_nnmodule_hook_guards": False,
    "recompile_limit": 64,
    "nested_graph_breaks": True,
}
"""Dynamo's settings while replacements stand. Its guards on hooks are on, or hooks that come later would be
passed over. The limit is of the shapes, types and flags that one forward function may be seen with; beyond
it the function runs as it was written. The blocks of a model may count each for itself, where they read
their number. (The argument of torch.compile that limits one function came after torch 2.11.) A graph ends in
the function that calls a trunk and not in all that called that function, or a loss that is computed of a
module's result would not be in one graph with the output layer."""


def _settings() -> dict[str, Any]:
    """Those settings, and what they depend on.

    Ignored is what is written to a log once alone, which the pass that looked at the module has written. At
    such a line a graph would end (torch 2.13), and the loss of transformers' GPT-2, which warns at the first,
    would not be in one graph with its output layer. With nested breaks Dynamo resumes the code of backward
    hooks wrongly, by an UnboundLocalError (torch 2.13).
    """
    once = {each for each in vars(logging.Logger).values() if hasattr(each, "cache_info")}
    parts = (each for module in list(_rewritings) for each in module.modules())
    return {
        **_SETTINGS,
        "nested_graph_breaks": not any(
            each._backward_hooks or each._backward_pre_hooks for each in parts
        ),
        "ignore_logger_methods": torch._dynamo.config.ignore_logger_methods | once,
    }


_before: dict[str, Any] = {}
"""Their values before the first replacement."""
_IMPL = "_compiled_call_impl"
_FUNCTIONS = {"attention": ("softmax", "sdpa"), "loss": ("loss",)}
"""The functions of `owners` that are at the heart of a part."""
_rewritings: "weakref.WeakKeyDictionary[nn.Module, Rewriting]" = weakref.WeakKeyDictionary()


def replace_part(module: nn.Module, part: str, implementation: str) -> Undo:
    """Let a part of the module, `attention` or `loss`, be computed by the named implementation. The reference
    decoder is left alone: it is built with its parts.

    Returns:
        What takes it back: outputs, gradients, names and the module's classes are as before, bit for bit.
    """
    if isinstance(module, Decoder):
        return nothing
    rewriting = of(module) or _rewritings.setdefault(module, Rewriting(module))
    return rewriting.wish(part, implementation)


def nothing() -> None:
    """Takes back that nothing was done."""


def of(module: nn.Module) -> "Rewriting | None":
    """The replacements that were made in a module, or None."""
    return _rewritings.get(module)


def settle(module: nn.Module, forward: Callable[[], object]) -> None:
    """Make the replacements that were asked for, by what a forward pass computes.

    The pass runs several times. Buffers and the states of random numbers are put back.

    Raises:
        PeakwardError: the module has no such part, or none that can be replaced; it is then as it was.
    """
    if (rewriting := of(module)) is not None:
        rewriting.settle(forward)


class Rewriting:
    """The replacements in one module."""

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        self.wishes: dict[str, str] = {}
        self._owners: dict[str, list[Chain]] = {}
        self._changed: list[nn.Module] = []
        self._undo: list[Undo] = []
        """Each takes back that a trunk was set apart."""
        self._trunk: nn.Module | None = None
        """The module that holds the repeated blocks, where the loss is computed outside it."""
        self._compile: tuple[Compile, CompileScope] | None = None
        self._is_settled = False
        self.outcomes: dict[str, list[Outcome]] = {}
        """The outcomes of each part."""

    def wish(self, part: str, implementation: str) -> Undo:
        """See `replace_part`."""
        self.wishes[part] = implementation
        self._begin()
        return lambda: self._forget(part)

    def _begin(self) -> None:
        """Settle at the next call."""
        module = self._module()
        assert module is not None
        self._take_out()
        self._is_settled = False
        self._put_in([module], self._at_first_call)

    def _forget(self, part: str) -> None:
        self.wishes.pop(part, None)
        for each in (self._owners, self.outcomes):
            each.pop(part, None)
        if not self.wishes:
            self._take_out()
            self._end()
        elif self._is_settled:
            self._run_through(None)
        # Code that was compiled before a change can be taken for the code after it (pytorch#117265).
        torch._dynamo.reset()

    def _end(self) -> None:
        if (module := self._module()) is not None:
            _rewritings.pop(module, None)
        if not _rewritings:
            _configure(_before)
            _before.clear()

    def _at_first_call(self, module: nn.Module) -> Callable[..., Any]:
        def first(*args: Any, **kwargs: Any) -> Any:
            self.settle(lambda: module(*args, **kwargs))
            return module(*args, **kwargs)

        return first

    def settle(self, forward: Callable[[], object]) -> None:
        """See the function of this name."""
        module = self._module()
        assert module is not None
        self._take_out()
        backend = Backend(module, dict(self.wishes), eager)
        try:
            with left_as_it_is(module):
                self._find(forward, backend)
                if self._compile is None:
                    self._run_through(backend)
                    for part, outcomes in self._tried(forward, backend).items():
                        self.outcomes[part].extend(outcomes)
        except BaseException:
            self._take_out()
            self.wishes.clear()
            self._end()
            torch._dynamo.reset()
            raise
        self._is_settled = True
        if self._compile is not None:
            self._run_through(None)

    def _find(self, forward: Callable[[], object], backend: Backend) -> None:
        """Choose the modules that each part is replaced in; the loss first, whose graph has the most.

        A backend of torch's is a setting around the step: a module that asks for torch's attention has it.
        """
        module = self._module()
        assert module is not None
        seen = owners.find(forward)
        self._trunk = owners.trunk(module, seen["loss"]) if "loss" in self.wishes else None
        self._owners = {part: [] for part in self.wishes}
        self.outcomes = {part: [] for part in self.wishes}
        for part in sorted(self.wishes, reverse=True):
            has_it = part == "attention" and BACKENDS.get(self.wishes[part]) is not None
            functions = ("softmax",) if has_it else _FUNCTIONS[part]
            for group in _by_class([each for name in functions for each in seen[name]]):
                if not self._contains(group[0]):
                    self._choose(part, group, forward, backend)
            outcomes = self.outcomes[part]
            is_done = any(isinstance(each, Replaced) for each in outcomes)
            if not is_done and not (has_it and seen["sdpa"]):
                name = type(module).__name__
                raise PeakwardError(_refusal(part, self.wishes[part], name, outcomes))
        around = (chain[-1] for chain in self._owners.get("attention", ()))
        if any(self._trunk in list(owner.modules())[1:] for owner in around):
            self._trunk = None

    @property
    def _apart(self) -> nn.Module | None:
        """The trunk, unless all is compiled as one."""
        is_one = self._compile is not None and self._compile[1] == "model"
        return None if is_one else self._trunk

    def _contains(self, chain: Chain) -> bool:
        """Whether a graph that was chosen already has what lies at the chain's end."""
        chosen = set(map(id, self._owning()))
        start = chain.index(self._trunk) if self._trunk in chain else 0
        return any(id(each) in chosen for each in chain[start:])

    def _choose(
        self, part: str, group: list[Chain], forward: Callable[[], object], backend: Backend
    ) -> None:
        """The level of the group at which most can be replaced, and of such the innermost. Where nothing
        can, the outermost has the reason that no more of the model takes away."""
        levels = list(self._levels(part, group[0], forward, backend))
        if part == "loss" and self._trunk and all(_worth(each[1][part]) != _ALL for each in levels):
            # The output layer is in the trunk too.
            self._trunk = None
            torch._dynamo.reset()
            levels = list(self._levels(part, group[0], forward, backend))
        depth, outcomes = max(levels, key=lambda level: _worth(level[1][part]))
        if _worth(outcomes[part]) == _NOTHING:
            depth, outcomes = next((each for each in reversed(levels) if each[1][part]), levels[-1])
        for each, found in outcomes.items():
            self.outcomes[each].extend(found)
        if any(isinstance(each, Replaced) for each in outcomes[part]):
            self._owners[part].extend(chain[:depth] for chain in group)

    def _levels(
        self, part: str, chain: Chain, forward: Callable[[], object], backend: Backend
    ) -> Iterator[tuple[int, dict[str, list[Outcome]]]]:
        """Gives the outcomes in the innermost module, in the one that calls it, and so on up to the first
        that more of the model could add nothing to."""
        for depth in range(len(chain), 0, -1):
            if part == "loss" and self._apart is not None:
                self._set_apart(self._apart, None)
            self._put_in([chain[depth - 1]], _through(backend))
            try:
                outcomes = self._tried(forward, backend)
            finally:
                self._take_out()
            yield depth, outcomes
            if not any(each.at_boundary for each in outcomes[part]):
                return

    def _tried(self, forward: Callable[[], object], backend: Backend) -> dict[str, list[Outcome]]:
        """The outcomes of the graphs that a pass has and earlier ones had not."""
        for each in backend.outcomes.values():
            each.clear()
        forward()
        return {part: list(each) for part, each in backend.outcomes.items()}

    def compiled(self, mode: Compile, scope: CompileScope) -> Undo:
        """Compile the repeated blocks, or the whole, and whatever else has replacements in it."""
        self._compile = mode, scope
        if self._is_settled:
            self._run_through(None)

        def undo() -> None:
            self._compile = None
            torch._dynamo.reset()
            if self._is_settled:
                self._run_through(None)

        return undo

    def _run_through(self, backend: Backend | None) -> None:
        """Let owners, and what is to be compiled, run through a backend; what lies in one of them is in its
        graph."""
        module = self._module()
        assert module is not None
        self._take_out()
        parts = {id(each): each for each in (*self._owning(), *self._to_compile(module))}
        inside = {
            id(each) for part in parts.values() for each in owners.in_graph_of(part, self._apart)
        }
        inner = eager if self._compile is None else inductor(self._compile[0])
        backend = backend or Backend(module, dict(self.wishes), inner)
        outermost = {key: each for key, each in parts.items() if key not in inside}
        if self._apart is not None:
            is_one = outermost.pop(id(self._apart), None) is not None
            self._set_apart(self._apart, backend if is_one else None)
        self._put_in(outermost.values(), _through(backend))

    def _owning(self) -> Iterator[nn.Module]:
        return (chain[-1] for found in self._owners.values() for chain in found)

    def _to_compile(self, module: nn.Module) -> list[nn.Module]:
        if self._compile is None:
            return []
        blocks = repeated_blocks(module) if self._compile[1] == "block" else None
        return [module] if blocks is None else list(blocks)

    def _put_in(
        self, modules: Iterable[nn.Module], make: Callable[[nn.Module], Callable[..., Any]]
    ) -> None:
        wanted = {
            name: each for name, each in _settings().items() if hasattr(torch._dynamo.config, name)
        }
        if not _before:
            _before.update({name: getattr(torch._dynamo.config, name) for name in wanted})
        _configure(wanted)
        for each in modules:
            setattr(each, _IMPL, make(each))
            self._changed.append(each)

    def _set_apart(self, trunk: nn.Module, backend: Backend | None) -> None:
        """End the graph of what calls the trunk before that call and begin another behind it, and let the
        trunk itself run through a backend where one is given. (Dynamo would pass over `_IMPL` of a module
        that is called within a graph.)"""
        if backend is None:
            around = torch.compiler.disable(lambda inner, args, kwargs: inner(*args, **kwargs))
        else:
            run = torch.compile(trunk.forward, backend=backend, dynamic=False)
            around = torch.compiler.disable(lambda _inner, args, kwargs: run(*args, **kwargs))
        self._undo.append(wrap_forward([trunk], around))

    def _take_out(self) -> None:
        for each in self._changed:
            vars(each).pop(_IMPL, None)
        self._changed.clear()
        for undo in self._undo:
            undo()
        self._undo.clear()


def _through(backend: Backend) -> Callable[[nn.Module], Callable[..., Any]]:
    def make(module: nn.Module) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(
            module._call_impl, backend=backend, dynamic=False
        )
        return compiled

    return make


def _configure(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        setattr(torch._dynamo.config, name, value)


def _by_class(chains: list[Chain]) -> list[list[Chain]]:
    """Chains that end in modules of one class at one depth."""
    groups: dict[tuple[type[nn.Module], int], list[Chain]] = {}
    for chain in chains:
        groups.setdefault((type(chain[-1]), len(chain)), []).append(chain)
    return list(groups.values())


_NOTHING, _ALL = (0.0, 0.0), (1.0, 1.0)


def _worth(outcomes: list[Outcome]) -> tuple[float, float]:
    """The share of parts that are replaced, and of those that nothing would add to."""
    if not outcomes:
        return _NOTHING
    replaced = [each for each in outcomes if isinstance(each, Replaced)]
    whole = [each for each in replaced if not each.at_boundary]
    return len(replaced) / len(outcomes), len(whole) / len(outcomes)


_HEART = {
    "attention": "attention as a softmax of scores, or as scaled_dot_product_attention",
    "loss": "torch's cross_entropy in its forward pass",
}


def _refusal(part: str, implementation: str, name: str, outcomes: list[Outcome]) -> str:
    reasons = dict.fromkeys(each.reason for each in outcomes if isinstance(each, Refused))
    if not reasons:
        return f"expected a module with {_HEART[part]}, for {part} {implementation}, got {name} without"
    got = "; ".join(reasons)
    return (
        f"expected a module whose {part} can become {implementation}, got {name}: {got}. Change it in the "
        "module's code"
    )


@contextmanager
def left_as_it_is(module: nn.Module) -> Iterator[None]:
    """Put buffers, states of forward passes that were given, and those of random numbers back on leaving."""
    held = [(each, each.detach().clone()) for each in (*module.buffers(), *states(module))]
    devices = sorted({each.device.index or 0 for each in module.parameters() if each.is_cuda})
    with torch.random.fork_rng(devices):
        yield
    with torch.no_grad():
        for each, before in held:
            if not torch.equal(each, before):
                each.copy_(before)
