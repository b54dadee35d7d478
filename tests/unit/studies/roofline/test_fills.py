"""Fills inside of operators count as theirs."""

import msgspec
import pytest

from peakward.prediction.ceilings import ceilings
from peakward.prediction.operators.op_graph import op_graph
from peakward.studies.cases import model_case
from peakward.studies.roofline.fills import fills_s
from peakward.studies.roofline.kinds import ELEMENTWISE
from peakward.studies.roofline.places import places
from peakward.studies.scope import micro

CASE = model_case(micro(), 2, 64, "train_step", "cuda")


def changed(told, change):
    operators = tuple(change(each) for each in told.profile.operators)
    return msgspec.structs.replace(
        told, profile=msgspec.structs.replace(told.profile, operators=operators)
    )


def test_a_fill_is_told_by_the_shape_of_the_result_around_it(traced):
    told = traced(CASE)
    found = fills_s(told, op_graph(CASE))
    fills = {
        each.dims: each.kernel_ns * 1e-9 / 3
        for each in told.profile.operators
        if each.name == "aten::fill_"
    }
    assert set(fills) == {"128×1000", "1000×128"}
    assert found == {"loss": fills["128×1000"], "embedding": fills["1000×128"]}


def test_other_fills_than_the_graph_s_tell_nothing(traced, roofed):
    told, on = traced(CASE), ceilings("fp32", roofed(), None)

    def twice(each):
        is_loss = each.name == "aten::fill_" and each.dims == "128×1000"
        return msgspec.structs.replace(each, n=2 * each.n) if is_loss else each

    odd = changed(told, twice)
    assert fills_s(odd, op_graph(CASE))["loss"] is None
    found = {each.kind: each for each in places(CASE, op_graph(CASE), on, odd, None)}
    assert found["loss"].measured_s is None
    assert found["embedding"].measured_s is not None


def test_a_fill_moves_from_elementwise_to_the_operator_around_it(traced, roofed):
    told, graph, on = traced(CASE), op_graph(CASE), ceilings("fp32", roofed(), None)
    moved = fills_s(told, graph)
    copies = {"copy", "elementwise", "reduction", "memory"}
    told_s = {
        "loss": sum(each.total_ns for each in told.profile.categories if each.category == "loss"),
        ELEMENTWISE: sum(
            each.total_ns
            for each in told.profile.categories
            if each.category in copies and each.phase != "optimizer"
        ),
    }
    found = {each.kind: each.measured_s for each in places(CASE, graph, on, told, None)}
    assert found["loss"] == pytest.approx(told_s["loss"] * 1e-9 / 3 + moved["loss"])
    assert found[ELEMENTWISE] == pytest.approx(told_s[ELEMENTWISE] * 1e-9 / 3 - sum(moved.values()))
