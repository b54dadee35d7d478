"""The tables of `roofline`."""

import pytest

from peakward.studies.roofline import tables
from peakward.studies.roofline.cells import read


def test_a_roof_a_precision(cells, rows):
    found = rows(tables.roofs(cells))
    assert [row["precision"] for row in found] == ["fp32", "bf16-mixed"]
    assert [row["ridge (operations/byte)"] for row in found] == pytest.approx([50, 800])


def test_every_case_has_a_row_and_a_failed_one_its_status(cells, rows, setting, told, small):
    found = rows(tables.steps(cells))
    assert len(found) == 18
    assert [row["of it placed"] for row in found] == pytest.approx([1] * 18, rel=1e-3)
    here = setting(small)
    failed = rows(tables.steps(read(told(here, overrule=lambda case: "oom"), here)))
    assert {(row["status"], row["in operators"], row["share of the roof"]) for row in failed} == {
        ("oom", None, None)
    }


def test_the_operators_of_a_step_share_its_time(cells, rows):
    found = tables.operators(cells)
    assert found[0].title == "micro, fp32, eager, batch 16: its operators"
    assert len(found) == 6
    for table in found:
        told = rows(table)
        assert sum(row["share of time"] for row in told) == pytest.approx(1, rel=1e-3)
        times = [row["measured"] for row in told]
        assert times == sorted(times, reverse=True)
        assert {row["predicted"] for row in told} == {None}


def test_a_larger_batch_raises_the_intensity_of_layers_alone(cells, rows):
    eager = [
        row
        for row in rows(tables.batches(cells))
        if (row["precision"], row["fusion"]) == ("fp32", "eager")
    ]
    by_kind = {}
    for row in eager:
        by_kind.setdefault(row["operators"], []).append(row["operations/byte"])
    assert by_kind["up"] == sorted(by_kind["up"])
    assert by_kind["up"][-1] > 1.5 * by_kind["up"][0]
    assert by_kind["softmax"] == pytest.approx([0.45] * 3, rel=0.01)
    assert by_kind["optimiser"] == pytest.approx([by_kind["optimiser"][0]] * 3)


def test_one_batch_makes_no_table_of_batches(cells):
    assert tables.batches(cells[:1]).rows == ()


def test_fusion_moves_less(cells, rows):
    found = {
        row["fusion"]: row["bytes"]
        for row in rows(tables.fusion(cells))
        if (row["precision"], row["batch"]) == ("fp32", 16)
    }
    assert found["compiled"] < found["fused attention"] < found["eager"]
