"""Forecasts of a machine's cases, each made once."""

import msgspec

from peakward.lab.levers.module_prediction import capture_case
from peakward.records.case import StepCase
from peakward.records.errors import PeakwardError
from peakward.tune.forecasts import Forecasts


def unasked(case):
    raise AssertionError(f"{case} was captured")


def test_a_decoder_is_forecast_from_its_shape(studies):
    told = Forecasts(studies.H200, None, unasked)
    assert told.of(studies.BASELINE).time.source == "datasheet"
    assert told.why_none(studies.BASELINE) is None
    assert told.of(studies.BASELINE) is told.of(studies.BASELINE)


def test_on_a_cpu_and_on_an_unknown_device_the_reason_stands_in_its_place(studies):
    on_cpu = msgspec.structs.replace(studies.BASELINE, device="cpu")
    told = Forecasts(studies.H200, None, unasked)
    assert told.of(on_cpu) is None
    assert "on a CPU" in told.why_none(on_cpu)
    unknown = msgspec.structs.replace(studies.H200, device_name="NVIDIA H200 NVL")
    told = Forecasts(unknown, None, unasked)
    assert told.of(studies.BASELINE) is None
    assert told.why_none(studies.BASELINE) == "NVIDIA H200 NVL is not in the catalogue of devices"


def test_a_module_is_captured_once(studies, make_module_case):
    case, asked = make_module_case("py:tiny_gpt:build", device="cuda"), []

    def capture(wanted):
        asked.append(wanted)
        return capture_case(wanted)

    told = Forecasts(studies.H200, None, capture)
    assert told.of(case) is told.of(case)
    assert told.of(case).case == case
    assert asked == [case]


def test_what_a_capture_would_not_see_is_never_asked_for(studies, make_module_case):
    told = Forecasts(studies.H200, None, unasked)
    compiled = make_module_case("py:tiny_gpt:build", device="cuda", compile="default")
    assert told.of(compiled) is None
    assert "compile default is not seen by operators" in told.why_none(compiled)


def test_a_refusal_is_the_reason(studies, make_module_case):
    def refuse(_case):
        raise PeakwardError("expected a module whose operators do not depend on values")

    told = Forecasts(studies.H200, None, refuse)
    case = make_module_case("py:tiny_gpt:build", device="cuda")
    assert told.of(case) is None
    assert "do not depend on values" in told.why_none(case)


def test_a_live_step_says_nothing(studies):
    step = StepCase(name="step", fingerprint="", device="cuda")
    told = Forecasts(studies.H200, None, unasked)
    assert "does not say what it computes" in told.why_none(step)
