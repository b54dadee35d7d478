"""A backend of torch.compile that replaces parts of a module's graphs and hands them on.

Dynamo's guards hold a graph to the shapes, types and flags that it was made at. What a replacement rests on
beyond these, such as a buffer that is a causal mask, is a `Fact`: it is looked at once for each tensor and
again when the tensor was changed in place, and a call for which it fails takes the graph as the module
wrote it.
"""

import copy
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from peakward.lab.rewriting import attention, loss
from peakward.lab.rewriting.attention import Outcome, Replaced
from peakward.lab.rewriting.dataflow import (
    Leaves,
    Refused,
    are_real,
    drop_unread,
    follow_in_place,
)
from peakward.lab.rewriting.later import Later
from peakward.lab.rewriting.loss import Returned
from peakward.lab.rewriting.masks import Fact
from peakward.lab.rewriting.own_backward import called_once
from peakward.records.case import Compile
from peakward.records.errors import PeakwardError

Call = Callable[..., Any]
Inner = Callable[[fx.GraphModule, Sequence[Any]], Call]
"""Makes a graph's function: as it stands, or compiled."""


class Backend:
    """The backend for a module with parts to replace.

    Args:
        module: the module that the user handed over, whose tensors facts may be about.
        wishes: the implementation of each part, `attention` and `loss`.
        inner: what makes functions of the graphs.
    """

    def __init__(self, module: nn.Module, wishes: dict[str, str], inner: Inner) -> None:
        self._module = weakref.ref(module)
        self._wishes, self._inner = wishes, inner
        self.outcomes: dict[str, list[Outcome]] = {part: [] for part in wishes}
        """The outcome of each part of each graph, since these were last emptied."""

    def __call__(self, graph: fx.GraphModule, examples: Sequence[Any]) -> Call:
        """The function of one graph, which takes the graph's inputs."""
        original = fx.GraphModule(graph, copy.deepcopy(graph.graph))
        try:
            facts, returned = self._rewrite(graph, examples)
        except PeakwardError:
            raise
        except Exception as error:  # noqa: BLE001 - it may be the user's own training that compiles again
            told = f"its graph could not be read ({type(error).__name__}: {error})"
            for outcomes in self.outcomes.values():
                outcomes.append(Refused(reason=told))
            warnings.warn(f"a part of the module is left as written: {told}", stacklevel=2)
            return self._inner(original, examples)
        graph.recompile()
        run = self._inner(graph, examples)
        if returned:
            run = partial(_with_returned, run, tuple(returned))
        return run if not facts else Guarded(run, called_once(original), facts)

    def _rewrite(
        self, graph: fx.GraphModule, examples: Sequence[Any]
    ) -> tuple[list[Fact], list[Returned]]:
        facts: list[Fact] = []
        returned: list[Returned] = []
        module = self._module()
        if module is None or not are_real(examples):
            return facts, returned
        leaves = Leaves(examples=examples, kept=_kept(module, examples), place={})
        for each in _graphs(graph, leaves):
            follow_in_place(each)
            drop_unread(each)
            if (name := self._wishes.get("attention")) is not None:
                found = attention.replace(each, name, leaves)
                self.outcomes["attention"].extend(found)
                facts.extend(
                    fact for one in found if isinstance(one, Replaced) for fact in one.facts
                )
        if (name := self._wishes.get("loss")) is not None:
            found, returned = loss.replace(graph.graph, name)
            self.outcomes["loss"].extend(found)
        return facts, returned


def _graphs(graph: fx.GraphModule, leaves: Leaves) -> Iterable[fx.Graph]:
    """The graph, and those that it calls, as checkpointing does; their inputs get places in `leaves`."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    leaves.place.update({node: i for i, node in enumerate(inputs)})
    waiting = [graph]
    while waiting:
        root = waiting.pop()
        yield root.graph
        for node in root.graph.nodes:
            called = [each for each in node.args if _is_graph(each, root)]
            if node.op != "call_function" or len(called) != 1:
                continue
            inside = getattr(root, called[0].target)
            given = node.args[node.args.index(called[0]) + 1 :]
            inner = [each for each in inside.graph.nodes if each.op == "placeholder"]
            if len(given) == len(inner):
                pairs = zip(inner, given, strict=True)
                leaves.place.update({a: leaves.place[b] for a, b in pairs if b in leaves.place})
                waiting.append(inside)


def _is_graph(node: Any, root: fx.GraphModule) -> bool:
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return False
    return isinstance(getattr(root, str(node.target), None), fx.GraphModule)


def _kept(module: nn.Module, examples: Sequence[Any]) -> frozenset[int]:
    """Places of inputs that are a module's own: parameters, buffers, or attributes."""
    own = {id(each) for each in (*module.parameters(), *module.buffers())}
    for each in module.modules():
        own.update(id(held) for held in vars(each).values() if isinstance(held, Tensor))
    return frozenset(i for i, each in enumerate(examples) if id(each) in own)


class Guarded:
    """A graph's function that rests on facts, and what is called where one of them fails."""

    def __init__(self, run: Call, original: fx.GraphModule, facts: Sequence[Fact]) -> None:
        self._run, self._original = run, original
        self._facts = {(each.claim, each.places): _Seen(each) for each in facts}

    def __call__(self, *inputs: Any) -> Any:
        """One call. It compares identities and versions, and waits for the device for new tensors alone."""
        for each in self._facts.values():
            if not each.holds(inputs):
                return self._original(*inputs)
        return self._run(*inputs)


class _Seen:
    """A fact, and the tensors that it was found to hold of."""

    def __init__(self, fact: Fact) -> None:
        self._fact, self._warned = fact, False
        self._known: dict[tuple[int, ...], tuple[list[weakref.ref[Tensor]], list[int], bool]] = {}

    def holds(self, inputs: Sequence[Any]) -> bool:
        tensors = [inputs[place] for place in self._fact.places]
        key = tuple(map(id, tensors))
        versions = [each._version for each in tensors]
        known = self._known.get(key)
        if known is not None and known[1] == versions and _are(known[0], tensors):
            return known[2]
        found = self._fact.holds(inputs)
        self._known[key] = ([weakref.ref(each) for each in tensors], versions, found)
        if not found and not self._warned:
            self._warned = True
            warnings.warn(
                f"expected that {self._fact.claim}, got a tensor of which that is not true: the attention "
                "runs as the module wrote it",
                stacklevel=2,
            )
        return found


def _are(held: list["weakref.ref[Tensor]"], tensors: list[Tensor]) -> bool:
    return all(ref() is each for ref, each in zip(held, tensors, strict=True))


def _with_returned(run: Call, left_out: Sequence[Returned], *inputs: Any) -> Any:
    """The graph's results, with those that it leaves out in their places."""
    results = list(run(*inputs))
    weight = results[left_out[0].weight_place]
    for each in left_out:
        results[each.place] = Later.made(each.like, each.compute, results[each.place], weight)
    return tuple(results[: left_out[0].weight_place])


def eager(graph: fx.GraphModule, _examples: Sequence[Any]) -> Call:
    """The graph as it stands."""
    run: Call = called_once(graph).forward
    return run


def inductor(mode: Compile) -> Inner:
    """torch's compiler in one of its modes."""
    wrapper = torch._TorchCompileInductorWrapper(None if mode == "default" else mode, None, False)
    make: Inner = wrapper
    return make
