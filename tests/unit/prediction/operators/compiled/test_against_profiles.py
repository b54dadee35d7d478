"""The closed form against kernels that ran on an H200, by their names in the stored profiles.

Inductor names a kernel after the operators in it. Views are no work, and what it calls by the names
of a decomposition is left out too.
"""

from collections import Counter

import msgspec
import pytest

from peakward.prediction.operators.op_graph import category, op_graph
from peakward.records import codec
from peakward.records.study import Study
from stored_results import index

NO_WORK = {
    *("_unsafe_view", "view", "split", "split_with_sizes", "transpose", "slice", "expand"),
    *("arange", "eq", "scalar_tensor", "where", "prepare_softmax_online"),
}


def compiled_profile(name):
    study = codec.from_json(index()[f"2026-11-21-h200-run-{name}"].read(), Study)
    return next(each for each in study.profiles if each.case.configuration.compile != "none")


def uncaptured(case):
    configuration = msgspec.structs.replace(
        case.configuration, cuda_graphs=False, optimizer="adamw-fused"
    )
    return msgspec.structs.replace(case, configuration=configuration)


def work(fused):
    """A loss's gradient is also named after the loss, and the loss after a difference in it."""
    loss = {"nll_loss_forward", "sub"} if "_log_softmax" in fused else set()
    return frozenset(fused) - NO_WORK - loss


def launched(profiled):
    """Of one step: phase, loop and operators of each of Inductor's kernels."""
    counts = Counter()
    for each in profiled.profile.kernels:
        if each.name.startswith("triton_"):
            loop = "pointwise" if each.name.startswith("triton_poi") else "reduction"
            counts[each.phase, loop, work(each.fused)] += each.n / profiled.profile.n_steps
    return counts


def stated(profiled):
    counts = Counter()
    for each in op_graph(uncaptured(profiled.case)).operators:
        if each.fused:
            loop = each.name.removeprefix("inductor.").split("_")[-1]
            fused = {name.removeprefix("aten.") for name in each.fused}
            counts[each.phase, loop, work(fused)] += each.count
    return counts


@pytest.mark.parametrize("name", ["small", "2.7B"])
def test_the_same_operators_are_fused_as_often(name):
    profiled = compiled_profile(name)
    assert sum(launched(profiled).values()) > 100
    assert stated(profiled) == launched(profiled)


def test_categories_are_those_of_the_loops():
    graph = op_graph(uncaptured(compiled_profile("small").case))
    loops = {each.name: category(each.name) for each in graph.operators if each.fused}
    assert loops == {
        "inductor.pointwise": "elementwise",
        "inductor.inner_reduction": "reduction",
        "inductor.outer_reduction": "reduction",
    }
