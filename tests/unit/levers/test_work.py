"""Each axis that describes its work describes all of it."""

import pytest

from peakward.levers.catalogue import with_settings
from peakward.levers.registry import AXES
from peakward.models.presets import model
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.time.kernels import OPERATORS
from peakward.records.case import Configuration, ModelCase, Workload

DESCRIBED = [(axis, value) for axis in AXES for value in axis.work]


def own_operators(pass_, settings):
    case = ModelCase(
        model=model("tiny"),
        workload=Workload(batch_size=1, seq_len=64, pass_=pass_),
        configuration=with_settings(Configuration(), settings),
        device="cuda",
    )
    return {each.name for each in op_graph(case).operators if each.name.startswith("peakward.")}


@pytest.mark.parametrize(("axis", "value"), DESCRIBED, ids=lambda each: getattr(each, "name", each))
def test_every_operator_that_it_writes_has_a_speed(axis, value):
    written = own_operators("forward_backward", {axis.name: value})
    if "forward" in axis.needs(value).passes:
        written |= own_operators("forward", {axis.name: value})
    assert written
    assert written <= axis.kernels.keys() <= OPERATORS


@pytest.mark.parametrize(("axis", "value"), DESCRIBED, ids=lambda each: getattr(each, "name", each))
def test_it_is_predicted_and_its_part_is_named(axis, value):
    assert axis.part is not None
    assert axis.describes(value, "cuda")
