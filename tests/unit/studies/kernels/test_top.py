"""The kernels that take most, in a trace recorded on a GPU."""

from pathlib import Path

import msgspec
import pytest

from peakward.studies.cases import model_case
from peakward.studies.kernels import top
from peakward.studies.kernels.grid import Cell
from peakward.studies.scope import micro
from peakward.traces.trace import Trace

RECORDED = Path(__file__).parents[3] / "data" / "traces" / "h200_decoder_compiled.json.gz"
CASE = model_case(micro(), 4, 512, "train_step", "cuda")


@pytest.fixture(scope="module")
def recorded():
    return Trace.open(RECORDED).profile()


@pytest.fixture
def cells(profile, recorded):
    found = msgspec.structs.replace(profile(CASE, 1), profile=recorded)
    return (Cell(case=CASE, measurement=None, profile=found),)


def of_phase(found, phase):
    return [row for row in found if row["phase"] == phase]


def test_the_longest_of_each_phase_first(cells, rows):
    found = rows(*top.by_time(cells, "kernel"))
    assert {row["phase"] for row in found} == {"forward", "backward", "optimizer"}
    for phase in ("forward", "backward", "optimizer"):
        totals = [row["total"] for row in of_phase(found, phase)]
        assert totals == sorted(totals, reverse=True)
        assert 0 < len(totals) <= top.TOP
        assert 0 < sum(row["share of the phase"] for row in of_phase(found, phase)) <= 1
    for row in found:
        assert row["min"] <= row["median"] <= row["max"]
        assert row["mean"] * row["n"] == pytest.approx(row["total"])


def test_the_most_often_run_first(cells, rows):
    counts = [row["n"] for row in of_phase(rows(*top.by_instances(cells, "kernel")), "backward")]
    assert counts == sorted(counts, reverse=True)


def test_matmuls_are_left_out(cells, rows):
    everything = rows(*top.by_time(cells, "kernel"))
    others = rows(*top.not_matmuls(cells, "kernel"))
    assert "matmul" in {row["category"] for row in everything}
    assert "matmul" not in {row["category"] for row in others}
    assert "memory" not in {row["category"] for row in others}


def test_the_longest_of_a_kind(cells):
    (cell,) = cells
    found = top.longest(cell.profile, lambda each: each.category == "attention")
    assert found.phase == "backward"
    assert top.longest(cell.profile, lambda each: False) is None


def test_a_table_for_each_case_that_was_profiled(cells):
    unprofiled = msgspec.structs.replace(cells[0], profile=None)
    (table,) = top.by_time((*cells, unprofiled), "kernel")
    assert table.title.startswith("micro 4 × 512 train_step: the 5 kernels of each phase")
