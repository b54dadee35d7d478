"""Kernels that rules make of a compiled part (`compiled_module`), carried out on a timeline by the rules of
Inductor for buffers."""

from collections.abc import Collection, Mapping, Sequence

from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.compiled.graph import Buffer, Graph
from peakward.prediction.operators.compiled_module.fusion import Kernel

_NO_SCRATCH: Mapping[int, tuple[int, ...]] = {}


def carried_out(
    line: Timeline,
    kernels: Sequence[Kernel],
    buffers: dict[int, Buffer],
    wanted: Collection[int],
    *,
    donated: Collection[int] = (),
    scratch: Mapping[int, tuple[int, ...]] = _NO_SCRATCH,
    tuning: bool,
) -> dict[int, Buffer]:
    """The buffers of what a graph gives back.

    Args:
        line: to carry it out on.
        kernels: of the graph.
        buffers: by value, of what the graph is given; those of what it makes are added.
        wanted: values that it gives back. Over any other that it made a kernel may write.
        donated: given values over which one may write too.
        scratch: bytes that a call has for the meantime, by the index of its operator.
        tuning: whether its kernels are launched for the first time.
    """
    graph, mine = Graph(), set(donated) - set(wanted)
    for kernel in kernels:
        _write_down(graph, kernel, buffers, mine, scratch.get(kernel.operator, ()))
        mine.update(set(kernel.writes) - set(wanted))
    results = {
        value: buffers[value]
        for kernel in kernels
        for value in kernel.writes
        if value in buffers and value in wanted
    }
    graph.run(line, *results.values(), tuning=tuning)
    return results


def _write_down(
    graph: Graph,
    kernel: Kernel,
    buffers: dict[int, Buffer],
    mine: set[int],
    scratch: tuple[int, ...],
) -> None:
    reads = [buffers[each.value] for each in kernel.reads if each.value in buffers]
    made = [(v, o) for v, o in zip(kernel.writes, kernel.made, strict=True) if o.n_bytes]
    operands = tuple(operand for _, operand in made)
    if kernel.kind is not None:
        over = next(
            (
                each.value
                for each in kernel.reads
                if made and each.value in mine and each.operand.dtype == operands[0].dtype
                if each.n_bytes == operands[0].n_bytes
            ),
            None,
        )
        found = graph.fused(*reads, writes=operands, over=None if over is None else buffers[over])
    elif len(made) == 1 and kernel.is_product:
        found = (graph.product(*reads, writes=operands[0]),)
    else:
        found = graph.operator(*reads, writes=operands, scratch=scratch)
    buffers.update({value: each for (value, _), each in zip(made, found, strict=True)})
