"""The host's cost of replaying a captured step, in the units of `dispatch`."""

from peakward.prediction.time import dispatch
from peakward.records.case import ModelCase
from peakward.records.measurement import Phase
from peakward.records.op_graph import OpGraph

REPLAY = 2.5
"""One launch of the graph: its calls and the two copies' took 18 and 28 µs in profiles of graphs of
434 and 1,456 nodes on an H200's host."""


def calls(_case: ModelCase, graph: OpGraph, phase: Phase) -> float:
    """As `dispatch.calls`, of a case with a CUDA graph: all of it at the step's begin."""
    if phase != "forward":
        return 0.0
    copies = sum(
        each.count
        for each in graph.operators
        if each.name == "aten.copy_" and each.module is None  # Else into a cache, in the graph.
    )
    return REPLAY + dispatch.OPERATOR * copies
