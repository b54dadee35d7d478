"""The tables of `memory`."""

import msgspec
import pytest

from peakward.prediction.parameters import n_parameters
from peakward.studies import memory
from peakward.studies.memory import tables
from peakward.studies.memory.grid import longest, read, residual_bytes

TOKEN_BYTES = 2**20


@pytest.fixture
def cells(setting, gathered):
    here = setting()
    return read(gathered(memory, here), here)


def test_peaks_by_phase(cells, rows):
    first = rows(tables.peaks(cells))[3]
    assert (first["workload"], first["precision"]) == ("4 × 128 train_step", "fp32")
    n_bytes = 4 * n_parameters(cells[3].case.model)
    assert first["optimizer"] == 2 * n_bytes
    assert first["backward"] == first["forward"] + 512 == first["recorded"]
    assert first["measured"] == cells[3].measurement.memory.peak_allocated_bytes
    assert rows(tables.peaks(cells))[0]["backward"] is None


def test_categories_add_up_and_those_that_never_occur_have_no_column(cells, rows):
    found = rows(tables.purposes(cells))
    assert "cache" not in found[0]
    for row, cell in zip(found, cells, strict=True):
        held = (
            row[name] or 0 for name in ("parameters", "gradients", "activations", "temporaries")
        )
        assert sum(held) == cell.peak.allocated_bytes
        assert row["peak in"] == cell.peak.phase


def test_what_a_block_keeps(cells, rows):
    (first, *_) = rows(tables.residual(cells))
    assert first["one activation"] == residual_bytes(cells[3].case)
    assert first["a block keeps"] == 128 * TOKEN_BYTES + 128**2
    assert first["over one activation"] == first["a block keeps"] / first["one activation"]


def test_activations_by_module(cells, rows):
    (table, *_) = tables.modules(longest(cells))
    assert table.title == "small 4 × 1024 train_step in fp32: activations by module"
    ff, softmax = rows(table)
    assert (ff["module"], ff["n"], ff["activations"]) == ("blocks.*.ff", 12, 12 * 2**30)
    assert softmax["activations"] == 12 * 2**20
    assert ff["share"] + softmax["share"] == pytest.approx(1)


def test_the_largest_have_their_lines(cells, rows):
    (table, *_) = tables.largest(longest(cells))
    (row,) = rows(table)
    assert row == {
        "each": 2**20,
        "n": 12,
        "for": "activations",
        "made in": "forward",
        "module": "blocks.*.attention.softmax",
        "line": "reference.py:30 softmax",
    }


def test_predictions_stand_beside_what_was_measured(cells, rows):
    for row in rows(tables.predicted(cells)):
        assert row["predicted over held"] == row["predicted"] / row["held"]


def test_peaks_on_the_clock_of_the_kernels(cells, rows):
    at_peak, queue = (rows(each) for each in tables.clocks(longest(cells)))
    assert len(at_peak) == len(queue) == 3 * len(longest(cells))
    assert at_peak[0]["workload"] == "4 × 1024 train_step"
    assert (at_peak[0]["phase"], at_peak[0]["kernel at work"]) == ("forward", None)
    assert (queue[0]["phase"], queue[0]["queued"]) == ("forward", None)
    backward = at_peak[1] | queue[1]
    assert backward["peak"] == longest(cells)[0].memory.phases[1].allocated_bytes
    assert (backward["at"], backward["operator"], backward["host ahead"]) == (
        1e-3,
        "aten::mm",
        5e-4,
    )
    assert (backward["kernels from"], backward["kernels to"]) == (2e-3, 4e-3)


def test_a_step_without_a_clock_has_no_rows_and_says_why(setting, gathered):
    here = setting()
    readings = gathered(memory, here)
    for each in readings.memory:
        changed = msgspec.structs.replace(each, clock=None, not_joined="got 3 for 4")
        readings.add_memory(changed)
    cells = read(readings, here)
    assert not any(each.rows for each in tables.clocks(longest(cells)))
    said = [each for each in memory.parts(readings, here).notes if "got 3 for 4" in each]
    assert len(said) == len(longest(cells))
    assert said[0].startswith("small 4 × 1024 train_step in fp32: its memory is not joined")
