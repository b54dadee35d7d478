"""The grid of `warmup` and the offsets it reads."""

import pytest

from peakward.studies import warmup
from peakward.studies.readings import Readings
from peakward.studies.warmup.grid import N_TIMED, WARMUPS, explained, plan, read


def test_every_case_is_measured_after_each_number_of_warmup_steps_in_a_fresh_process(setting):
    planned = plan(setting())
    assert len(planned) == 2 * 2 * 2 * len(WARMUPS)
    for _, protocol in planned:
        assert protocol.fresh_process
        assert (protocol.min_steps, protocol.max_steps) == (N_TIMED, N_TIMED)
    assert {protocol.warmup_steps for _, protocol in planned} == set(WARMUPS)


def test_one_first_step_a_size_is_explained_and_it_is_of_the_grid(setting):
    here = setting()
    found = explained(here)
    assert [case.model.name for case, _ in found] == ["small", "2.7B"]
    assert set(found) <= set(plan(here))
    assert {protocol.warmup_steps for _, protocol in found} == {0}


def test_a_first_step_of_91_times_makes_the_mean_of_ten_tenfold(setting, gathered):
    here = setting()
    cold = [row for row in read(gathered(warmup, here), here) if row.warmup_steps == 0]
    assert cold
    for row in cold:
        assert row.over_steady("first") == pytest.approx(91)
        assert row.over_steady("mean") == pytest.approx(10)
        assert row.over_steady("median") == pytest.approx(1)


def test_without_the_steady_case_nothing_is_off(setting, gathered):
    here = setting()
    readings = gathered(warmup, here)
    only_cold = Readings(each for each in readings if each.protocol.warmup_steps == 0)
    for row in read(only_cold, here):
        assert row.over_steady("mean") is None
