"""What `warmup` concludes from known offsets."""

import msgspec
import pytest

from peakward.records.measurement import FirstStep, Interval
from peakward.studies import warmup
from peakward.studies.cases import model_case, place
from peakward.studies.scope import micro
from peakward.studies.warmup.conclusions import explain
from peakward.studies.warmup.grid import FirstStepCost


@pytest.fixture
def said(setting, gathered):
    def make(**options):
        here = setting()
        return warmup.parts(gathered(warmup, here, **options), here).conclusions

    return make


def test_the_offsets_without_warm_up(said, figures):
    told = figures(said()[0])
    assert told["warm-up steps"] == 0
    assert told["cases"] == 8
    assert told["first over the steady time, median of cases"] == pytest.approx(91)
    assert told["mean over the steady time, median of cases"] == pytest.approx(10)
    assert told["median over the steady time, furthest from it"] == pytest.approx(1)


def test_the_worst_is_the_furthest_to_either_side(setting, gathered, measure, figures):
    """Steps of half the steady time are as wrong as steps of twice it."""
    here = setting()
    readings = gathered(warmup, here)
    cold, *others = [each for each in readings if each.protocol.warmup_steps == 1]
    for serial, each in enumerate((cold, *others)):
        factor = 0.25 if each is cold else 1.5
        again = measure(each.case, each.protocol, here.environment, "ok", serial, factor)
        readings.add(again)
    said = warmup.parts(readings, here).conclusions[1]
    told = figures(said)
    assert told["mean over the steady time, furthest from it"] == pytest.approx(0.25)
    assert told["median over the steady time, furthest from it"] == pytest.approx(0.25)
    assert said.text.count(f"({place(cold.case)})") == 2


def test_cases_that_failed_are_not_counted(said, figures):
    told = figures(said(overrule=lambda case: "oom" if case.model.name == "2.7B" else None)[0])
    assert told["cases"] == 4


def test_nothing_ran_nothing_said(said):
    assert said(overrule=lambda case: "crashed") == ()


@pytest.fixture
def cost(measure, setting):
    """Of a case whose first step takes 91 s and whose steady ones take 1, on a device, with a profile."""
    here = setting()

    def make(device="cuda", **told):
        case = model_case(micro(), 2, 64, "forward_backward", device)
        cold = measure(case, here.protocol(warmup_steps=0), here.environment)
        steady = measure(case, here.protocol(warmup_steps=5), here.environment)
        times = {"estimate": 1.0, "low": 0.99, "high": 1.01}
        summary = msgspec.structs.replace(steady.summary, median_s=Interval(**times))
        run = msgspec.structs.replace(cold.runs[0], steps_s=(91.0, *(1.0,) * 9))
        return FirstStepCost(
            cold=msgspec.structs.replace(cold, runs=(run,)),
            steady=msgspec.structs.replace(steady, summary=summary),
            profile=FirstStep(profiled_s=120.0, **told),
        )

    return make


def test_the_parts_of_a_first_step_sum_to_what_it_took_longer(cost, figures):
    parts = {"module_load_s": 45.0, "allocation_s": 9.0, "products_s": 18.0, "autotune_s": 0.0}
    (said,) = explain(cost(**parts, compile_s=0.0))
    assert said.text == (
        "The first step of micro 2 × 64 forward_backward takes 91.0 s, 90.0 s longer than a steady one: "
        "module loading 45.0 s (50.0%), memory allocation 9.00 s (10.0%), cuBLAS's set-up and heuristics "
        "18.0 s (20.0%), everything else 18.0 s (20.0%); there was no autotuning and no compilation."
    )
    told = figures(said)
    shares = [value for name, value in told.items() if name.endswith("of the excess")]
    assert sum(shares) == pytest.approx(1)


def test_autotuning_and_compilation_are_parts_where_they_happened(cost):
    (said,) = explain(cost(autotune_s=60.0, compile_s=9.0, module_load_s=0.0))
    assert (
        "autotuning 60.0 s (66.7%), compilation 9.00 s (10.0%), everything else 21.0 s" in said.text
    )
    assert "there was no module loading." in said.text


def test_what_a_record_does_not_tell_is_named(cost):
    (said,) = explain(cost(module_load_s=9.0))
    assert said.text.endswith(
        "everything else 81.0 s (90.0%). Not measured in this record: memory allocation, cuBLAS's set-up "
        "and heuristics, autotuning, compilation."
    )


def test_parts_that_come_to_more_than_the_excess_say_why(cost):
    (said,) = explain(cost(module_load_s=99.0))
    assert (
        "everything else −9.00 s (−10.0%); below zero, for the parts are of a step that"
        in said.text
    )


def test_a_cpu_tells_page_faults_and_what_it_did_not_do(cost):
    (said,) = explain(cost("cpu", n_page_faults=1234, autotune_s=0.0, compile_s=0.0))
    assert said.text == (
        "The first step of micro 2 × 64 forward_backward takes 91.0 s, 90.0 s longer than a steady one, "
        "with 1,234 page faults; there was no autotuning and no compilation."
    )


def test_without_a_steady_time_or_an_excess_nothing_is_explained(cost):
    whole = cost(module_load_s=9.0)
    assert explain(msgspec.structs.replace(whole, steady=None)) == ()
    assert explain(msgspec.structs.replace(whole, steady=slow(whole.steady))) == ()


def slow(steady):
    """Steady steps that take longer than the first one did."""
    interval = Interval(estimate=95.0, low=94.0, high=96.0)
    summary = msgspec.structs.replace(steady.summary, median_s=interval)
    return msgspec.structs.replace(steady, summary=summary)
