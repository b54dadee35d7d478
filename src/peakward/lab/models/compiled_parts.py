"""Follows which operators of running code belong to parts that a compiler would make one graph of each."""

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from peakward.lab.models.lifetimes import LifetimeRecorder
from peakward.lab.models.operator_work import stored_bytes, tensors
from peakward.records.measurement import Phase
from peakward.records.op_graph import Call, CompiledParts, Operator, OpGraph, Output, Seen

_ASKED = ("is_compiling", "is_dynamo_compiling", "is_exporting")
"""The questions that code in a part which is told is answered with yes. Dynamo says so of
exporting too (transformers' `masking_utils`, of torch below 2.14): a model compiled as a whole builds masks
that an eager one does not. Repeated blocks need not be told, for of transformers' those of mixtures alone
ask; so one recording serves the eager step too."""


class PartRecorder:
    """Keeps the order of operators, and the memory that each reads and writes.

    A part is told as `ModulePaths` tells a module: in the backward pass by the numbers of autograd's nodes.
    Where autograd adds two gradients no node runs; the sum is of the part that ran before it, whose gradient
    is the later of the two.

    Args:
        parts: the modules that would be compiled, each by itself; without any nothing is kept.
        told: those of them that are told that they are compiled.
        line: numbers the memory of tensors; it sees every operator first.
    """

    def __init__(
        self,
        parts: Sequence[nn.Module] = (),
        line: LifetimeRecorder | None = None,
        *,
        told: Sequence[nn.Module] = (),
    ) -> None:
        self._parts, self._told = parts, set(told)
        self._n_told = 0
        """Parts that run and are told."""
        self.asked = False
        """Whether code in a part that is not told has asked; torch's own asks all the time."""
        self._line = LifetimeRecorder() if line is None else line
        self._running = [0]
        self._starts, self._made_in = [0], [0]
        """Nodes numbered `_starts[i]` to `_starts[i + 1]` were made in part `_made_in[i]`."""
        self._n_calls = self._last = self._n_module_calls = 0
        self._phase: Phase | None = None
        self._seen: dict[Seen, int] = {}
        self._calls: list[tuple[Operator, Call]] = []
        self._outputs: list[Output] = []

    def mark(self, phase: Phase | None) -> None:
        """Begins a phase. Operators before the first mark are not told."""
        self._phase, self._last = phase, 0
        if phase == "forward":
            self._n_calls = self._n_module_calls = 0

    def keep(self, operator: Operator, given: list[Tensor], written: list[Tensor]) -> None:
        """Keeps a call, with the tensors that it is given and those that it writes."""
        if not self._parts:
            return
        self._last = self._part()
        now = len(self._line.phases) - 1
        reads, writes = self._indices(given), self._indices(written)
        self._calls.append((operator, Call(len(self._calls), now, self._last, reads, writes)))

    def found(self, graph: OpGraph, named: Callable[[Operator], Operator]) -> CompiledParts:
        """All that was kept, whose operators are `graph`'s once `named` has renamed them."""
        places = {replace(each, count=1): i for i, each in enumerate(graph.operators)}
        calls = [replace(call, operator=places[named(each)]) for each, call in self._calls]
        return CompiledParts(
            tuple(self._seen),
            tuple(calls),
            tuple(self._outputs),
            self._n_module_calls,
            bool(self._told),
        )

    def count_call(self) -> None:
        """Is told each call of a module."""
        self._n_module_calls += not self._is_inside()

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Sees calls of the parts while it lasts, and answers those that are told as a compiler would."""
        with ExitStack() as changes:
            for part in self._parts:
                for hook in (
                    part.register_forward_pre_hook(self._enter, prepend=True),
                    part.register_forward_hook(self._leave, always_call=True),
                ):
                    changes.callback(hook.remove)
            for name in _ASKED if self._parts else ():
                changes.enter_context(patch.object(torch.compiler, name, self._is_told))
            yield

    def _is_told(self) -> bool:
        if self._is_inside() and not self._n_told:
            asker = sys._getframe(1).f_globals["__name__"]
            self.asked |= not asker.startswith("torch.")
        return self._n_told > 0

    def _is_inside(self) -> bool:
        return self._running[-1] != 0

    def _enter(self, part: nn.Module, _args: object) -> None:
        self._n_calls += 1
        self._n_told += part in self._told
        self._running.append(self._n_calls)
        self._note()

    def _leave(self, part: nn.Module, _args: object, result: object) -> None:
        number = self._running.pop()
        self._n_told -= part in self._told
        self._note()
        if self._phase is not None:
            made = tensors(result)
            found = zip(self._indices(made), made, strict=True)
            self._outputs += [Output(number, i, x.requires_grad) for i, x in found]

    def _note(self) -> None:
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._made_in.append(self._running[-1])

    def _part(self) -> int:
        if self._phase != "backward":
            return self._running[-1] if self._phase == "forward" else 0
        node = torch._C._current_autograd_node()
        if node is None:
            return self._last
        if hasattr(node, "variable"):  # It adds to a parameter's gradient, outside compiled code.
            return 0
        return self._made_in[bisect_right(self._starts, node._sequence_nr()) - 1]

    def _indices(self, found: list[Tensor]) -> tuple[int, ...]:
        return tuple([self._seen.setdefault(self._look(x), len(self._seen)) for x in found])

    def _look(self, tensor: Tensor) -> Seen:
        return Seen(
            memory=self._line.number(tensor),
            offset=int(tensor.storage_offset()),
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            n_bytes=stored_bytes([tensor]),
        )
