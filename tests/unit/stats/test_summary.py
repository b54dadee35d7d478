"""What is summarised over steps and what over processes."""

import pytest

from peakward.records.measurement import Run
from peakward.stats.bootstrap import median_interval
from peakward.stats.summary import summarise


def run(*steps_s: float) -> Run:
    return Run(warmup_s=(9.0,), steps_s=steps_s)


def test_one_process_is_summarised_over_its_steps() -> None:
    summary = summarise([run(1.0, 2.0, 3.0, 4.0, 10.0)])
    assert summary.median_s == median_interval([1.0, 2.0, 3.0, 4.0, 10.0])
    assert (summary.median_s.estimate, summary.mean_s, summary.min_s, summary.n) == (3, 4, 1, 5)
    assert summary.sd_s == pytest.approx(12.5**0.5)


def test_several_processes_are_summarised_over_their_medians() -> None:
    fast, slow, slower = run(1.0, 1.0, 1.0, 1.0, 7.0), run(3.0, 3.0, 3.0), run(5.0, 5.0, 5.0)
    summary = summarise([fast, slow, slower])
    assert summary.median_s == median_interval([1.0, 3.0, 5.0])
    assert summary.mean_s == pytest.approx(35 / 11)
    assert (summary.min_s, summary.n) == (1.0, 11)


def test_many_steps_of_one_process_do_not_outvote_the_others() -> None:
    assert summarise([run(*[1.0] * 100), run(3.0), run(3.0)]).median_s.estimate == 3.0


def test_a_single_step_has_no_spread() -> None:
    summary = summarise([run(2.0)])
    assert (summary.sd_s, summary.n, summary.median_s.low, summary.median_s.high) == (0, 1, 2, 2)


def test_a_process_without_timed_steps_adds_nothing() -> None:
    assert summarise([run(), run(1.0, 2.0)]) == summarise([run(1.0, 2.0)])


def test_nothing_timed_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least one timed step"):
        summarise([run()])
