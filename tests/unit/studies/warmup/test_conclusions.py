"""What `warmup` concludes from known offsets."""

import msgspec
import pytest

from peakward.records.measurement import FirstStep
from peakward.studies import warmup
from peakward.studies.cases import model_case
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
