"""Exponents over known times and bytes."""

import pytest

from peakward.studies import attention
from peakward.studies.attention.grid import read as read_cells
from peakward.studies.attention.growth import read


def test_exponents_are_those_of_the_laws(setting, gathered):
    here = setting()
    grown = {
        (each.last.precision, each.last.head_dim, each.last.arm.name): each
        for each in read(read_cells(gathered(attention, here), here))
    }
    naive, flash = grown["fp32", 16, "naive"], grown["fp32", 16, "flash"]
    assert naive.forward.estimate == pytest.approx(2)
    assert naive.forward.low < 2 < naive.forward.high
    assert naive.held == pytest.approx(2, abs=0.02)
    assert flash.held == pytest.approx(1)
    assert len(flash.sources) == 6
    assert ("fp32", 16, "flash-hopper") not in grown


def test_two_lengths_give_none(setting, gathered):
    here = setting()
    cells = read_cells(
        gathered(attention, here, overrule=lambda case: "oom" if case.seq_len > 4096 else None),
        here,
    )
    assert read(cells) == ()
