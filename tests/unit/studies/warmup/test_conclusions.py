"""What `warmup` concludes from known offsets."""

import msgspec
import pytest

from peakward.records.measurement import FirstStep
from peakward.studies import warmup
from peakward.studies.cases import model_case, place
from peakward.studies.scope import micro
from peakward.studies.warmup.conclusions import explain


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


def test_a_first_step_is_explained_with_what_the_device_tells(measure, setting):
    here = setting()
    case = model_case(micro(), 2, 64, "forward_backward", "cuda")
    made = measure(case, here.protocol(warmup_steps=0), here.environment)
    first = FirstStep(profiled_s=4.0, allocation_s=1.0, n_device_allocations=12)
    text = explain(msgspec.structs.replace(made, first_step=first)).text
    assert text == (
        "The first step of micro 2 × 64 forward_backward took 4.00 s under a profiler: "
        "25.0% allocating memory, 12 device allocations."
    )
