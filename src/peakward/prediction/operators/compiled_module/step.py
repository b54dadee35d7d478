"""A captured step whose parts are compiled: the kernels that Inductor makes of each, and the eager rest."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from peakward.prediction.operators.compiled_module.fusion import Kernel, kernels
from peakward.prediction.operators.compiled_module.loops import Read
from peakward.prediction.operators.compiled_module.partition import split
from peakward.prediction.operators.compiled_module.parts import Part, Parts, Value, parts_of
from peakward.prediction.operators.tape import tensor
from peakward.records.measurement import Phase
from peakward.records.op_graph import READ_BY_HOST, ModuleCapture, Operator, OpGraph


class Code(NamedTuple):
    """The kernels that a part is compiled to."""

    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    saved: tuple[int, ...]
    """Values that are kept between the two."""
    values: tuple[Value, ...]


class CompiledStep(NamedTuple):
    """A step whose parts are compiled."""

    parts: Parts
    codes: tuple[Code, ...]
    """One for each part, and the same one for parts that are alike."""
    graph: OpGraph
    """Kernels and eager operators."""
    n_launched: Mapping[Phase, int]
    """Kernels out of compiled code."""
    n_graphs: Mapping[Phase, int]
    """Calls of compiled code. Where the host waits a graph ends and another begins."""
    n_eager: Mapping[Phase, int]
    """Eager operators."""
    n_parameters: int
    """Parameters that compiled code is given, in all calls together."""


def compiled_step(capture: ModuleCapture) -> CompiledStep:
    """The step of a capture with compiled parts."""
    parts = parts_of(capture)
    codes = tuple(compiled(placed.part) for placed in parts.parts)
    operators = [msgspec.structs.replace(each, count=1) for each in capture.graph.operators]
    zeros = [
        _zeros(value)
        for placed in parts.parts
        for value in placed.part.values
        if value.origin == "zeros"
    ]
    eager = [*(operators[each.call.operator] for each in parts.outside), *zeros]
    kernels_by_phase = [
        (kernel, phase) for code in codes for phase, found in _directions(code) for kernel in found
    ]
    launched = [told(kernel, operators, phase) for kernel, phase in kernels_by_phase]
    # In the order in which each first runs.
    placed_at = [
        *(kernel.operator for kernel, _ in kernels_by_phase),
        *(each.call.operator for each in parts.outside),
        *(0 for _ in zeros),
    ]
    by_place = sorted(zip(placed_at, [*launched, *eager], strict=True), key=lambda each: each[0])
    waits = Counter[Phase](each.phase for each in launched if each.name == READ_BY_HOST)
    calls = Counter[Phase](phase for code in codes for phase, found in _directions(code) if found)
    return CompiledStep(
        parts=parts,
        codes=codes,
        graph=OpGraph.of(operator for _, operator in by_place),
        n_launched=Counter(each.phase for each in launched),
        n_graphs=calls + waits,
        n_eager=Counter(each.phase for each in eager),
        n_parameters=sum(
            value.origin == "parameter" for placed in parts.parts for value in placed.part.values
        ),
    )


@lru_cache(maxsize=64)
def compiled(part: Part, kept: frozenset[str] | None = None) -> Code:
    """The part's kernels. One serves all parts that are alike, and all devices. Of a part that is recomputed,
    `kept` names the operators whose results are not."""
    cut = split(part, kept)
    values = list(cut.values)
    leaves = {i for i, value in enumerate(values) if value.leaves}
    forward = kernels(cut.forward, values, leaves | set(cut.saved))
    backward = kernels(cut.backward, values, leaves)
    return Code(forward, backward, cut.saved, tuple(values))


def _directions(code: Code) -> tuple[tuple[Phase, tuple[Kernel, ...]], ...]:
    return ("forward", code.forward), ("backward", code.backward)


def told(kernel: Kernel, operators: Sequence[Operator], phase: Phase) -> Operator:
    """The kernel as an operator."""
    first = operators[kernel.operator]
    if kernel.kind is None:
        return _padded(kernel, first)
    return Operator(
        name=f"inductor.{kernel.kind}",
        phase=phase,
        module=first.module,
        inputs=tuple(each.operand for each in _once(kernel.reads)),
        outputs=kernel.made,
        flops=0,
        bytes_read=sum(each.n_bytes for each in kernel.reads),
        bytes_written=sum(each.n_bytes for each in kernel.made),
        fused=kernel.names,
    )


def _padded(kernel: Kernel, call: Operator) -> Operator:
    """The call, of the matrices that a product is given."""
    if not kernel.is_product:
        return call
    a, b = (each.operand for each in kernel.reads[-2:])
    if (a.shape, b.shape) == tuple(each.shape for each in call.inputs[-2:]):
        return call
    made = tensor(a.dtype, *a.shape[:-1], b.shape[-1])
    return msgspec.structs.replace(
        call,
        inputs=(*call.inputs[:-2], a, b),
        outputs=(made,),
        flops=2 * math.prod(a.shape) * b.shape[-1],
        bytes_read=sum(each.n_bytes for each in kernel.reads),
        bytes_written=made.n_bytes,
    )


def _zeros(value: Value) -> Operator:
    """The gradient that autograd makes for an output which got none."""
    return Operator(
        name="aten.zeros",
        phase="backward",
        module=None,
        inputs=(),
        outputs=(value.operand,),
        flops=0,
        bytes_read=0,
        bytes_written=value.n_bytes,
    )


def _once(reads: Sequence[Read]) -> tuple[Read, ...]:
    """The largest part of each value."""
    found: dict[int, Read] = {}
    for each in reads:
        found.setdefault(each.value, each)
    return tuple(found.values())
