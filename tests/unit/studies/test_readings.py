"""Figures read off measurements, and None where there are none."""

import msgspec
import pytest

from peakward.records.case import Source, TextData
from peakward.records.measurement import Protocol
from peakward.studies import readings
from peakward.studies.cases import model_case, with_work
from peakward.studies.readings import Readings
from peakward.studies.scope import micro

PROTOCOL = Protocol()


@pytest.fixture
def case():
    return model_case(micro(), 2, 128, "train_step", "cuda")


def test_a_measurement_is_found_by_its_plan(case, measure, setting):
    made = measure(case, PROTOCOL, setting().environment)
    found = Readings([made])
    assert found.find((case, PROTOCOL)) is made
    assert found.find((case, Protocol(warmup_steps=1))) is None
    assert found.find((with_work(case, batch_size=3), PROTOCOL)) is None


def test_a_plan_with_another_time_out_finds_it_too(case, measure, setting):
    made = measure(case, PROTOCOL, setting().environment)
    hurried = msgspec.structs.replace(PROTOCOL, timeout_s=PROTOCOL.timeout_s / 2)
    assert Readings([made]).find((case, hurried)) is made


def test_a_later_reading_replaces_an_earlier_one_of_the_same_plan(case, measure, setting):
    env = setting().environment
    found = Readings([measure(case, PROTOCOL, env, serial=1)])
    found.add(measure(case, PROTOCOL, env, serial=2))
    assert [each.id for each in found] == ["m2"]


def test_rates_follow_from_the_median(case, measure, setting):
    made = measure(case, PROTOCOL, setting().environment)
    step_s = made.summary.median_s.estimate
    assert readings.tokens_per_s(made) == pytest.approx(2 * 128 / step_s)
    assert readings.flops_per_s(made) == pytest.approx(1e12)


def test_of_varying_lengths_the_rate_follows_from_the_mean(case, measure, setting):
    varied = with_work(case, varying_seq_lens=(128, 64))
    made = measure(varied, Protocol(warmup_steps=0), setting().environment)
    assert made.summary.mean_s > 2 * made.summary.median_s.estimate
    assert readings.tokens_per_s(made) == pytest.approx(2 * 96 / made.summary.mean_s)


@pytest.mark.parametrize("status", ["oom", "timeout", "crashed", "invalid"])
def test_a_case_that_failed_has_a_status_and_no_figures(case, measure, setting, status):
    made = measure(case, PROTOCOL, setting().environment, status)
    assert readings.status(made) == status
    figures = (
        readings.time,
        readings.median_s,
        readings.step_s,
        readings.tokens_per_s,
        readings.flops_per_s,
        readings.peak_bytes,
        readings.verdict,
    )
    assert [figure(made) for figure in figures] == [None] * len(figures)


def test_a_case_that_was_not_run(case):
    assert readings.status(None) == "not run"
    assert readings.tokens_per_s(None) is None


def test_intervals_are_distinct_only_where_they_do_not_touch(case, measure, setting):
    time = measure(case, PROTOCOL, setting().environment).summary.median_s
    apart = msgspec.structs.replace(time, low=time.high * 1.01, high=time.high * 1.02)
    assert readings.distinct(time, apart)
    assert readings.distinct(apart, time)
    assert not readings.distinct(time, msgspec.structs.replace(apart, low=time.high))


def test_ratios_of_the_unknown_are_unknown():
    assert readings.ratio(6.0, 3.0) == 2.0
    assert readings.ratio(None, 3.0) is None
    assert readings.ratio(6.0, None) is None
    assert readings.ratio(6.0, 0.0) is None


def test_of_a_loader_the_rate_follows_from_the_mean_over_bursts(case, measure, setting):
    fed = with_work(case, data=TextData(text=Source("python-topics")))
    made = measure(fed, Protocol(warmup_steps=0, min_steps=20), setting().environment)
    assert readings.tokens_per_s(made) == pytest.approx(2 * 128 / made.summary.mean_s)
    interval = readings.mean_s(made)
    assert interval.estimate == pytest.approx(made.summary.mean_s)
    assert interval.low < made.summary.median_s.estimate < interval.high
    assert readings.mean_s(msgspec.structs.replace(made, status="oom")) is None
    assert readings.mean_s(measure(fed, Protocol(), setting().environment)) is None, "ten steps"
