"""The grid of tokens/s."""

import pytest

from peakward.studies import throughput
from peakward.studies.scope import Scope
from peakward.studies.throughput.speed import cases, precisions, read, refusals


def test_fp32_is_always_there_and_first(setting):
    here = setting(Scope("corners", precisions=("bf16", "tf32")))
    assert precisions(here) == ("fp32", "bf16", "tf32")


def test_tf32_only_where_it_is_listed(setting):
    assert "tf32" not in precisions(setting())


def test_what_the_machine_cannot_run_is_not_planned(setting):
    here = setting(Scope("small", precisions=("tf32", "bf16")), "cpu")
    assert {case.configuration.precision for case in cases(here)} == {"fp32", "bf16"}
    assert refusals(here) == ("Not run: precision tf32 needs cuda, got cpu.",)


def test_every_cell_is_held_against_fp32_of_the_same_work(setting, gathered):
    here = setting()
    cells = read(gathered(throughput, here), here)
    assert len(cells) == 24
    factors = {"fp32": 1.0, "bf16-mixed": 5.0, "bf16": 8.0}
    known = [cell for cell in cells if cell.speedup.factor is not None]
    assert known
    for cell in known:
        assert cell.speedup.factor == pytest.approx(factors[cell.case.configuration.precision])
