"""What levers are predicted to give a module of the user's, in the findings about it."""

import msgspec
import pytest

from peakward.records.errors import PeakwardError
from peakward.tune.diagnoses import diagnosed
from peakward.tune.forecasts import Forecasts


@pytest.fixture
def diagnosis(studies, make_module_case):
    """The golden baseline's measurement and profile, as if they were a module's: what its rules find, with
    what a capture, or the refusal of one, says of its levers."""

    def made(capture, **measured):
        case = make_module_case(
            "py:tiny_gpt:build", device="cuda", workload={"batch_size": 64, "seq_len": 64}
        )
        study = studies.run_study()
        (profile,) = (each for each in study.profiles if each.case == studies.BASELINE)
        (found,) = diagnosed(
            (msgspec.structs.replace(study.measurements[0], case=case, **measured),),
            profiles=(msgspec.structs.replace(profile, case=case),),
            memory=(),
            forecasts=Forecasts(studies.H200, None, capture),
        )
        assert found.case == case
        return found

    return made


def captured(case):
    from peakward.lab.levers.module_prediction import capture_case

    return capture_case(case)


def refused(case):
    raise PeakwardError("its operators depend on values")


def gains(found):
    return {gain.lever: (each, gain) for each in found.findings for gain in each.gains}


def test_a_module_is_diagnosed_like_a_decoder(diagnosis):
    found = diagnosis(captured)
    codes = [each.code for each in found.findings]
    assert {"ATTN001", "BW003"} <= set(codes)
    assert found.basis == "measured step"


def test_what_a_capture_sees_has_a_gain(diagnosis):
    found = gains(diagnosis(captured, status="oom", summary=None))
    for name in ("checkpointing", "bf16-mixed"):
        finding, gain = found[name]
        assert finding.code == "MEM001"
        assert gain.saved_bytes > 0
        assert gain.predicted.low < gain.predicted.high
        assert "captured operators" in gain.source


def test_what_it_does_not_see_says_why(diagnosis):
    _, gain = gains(diagnosis(captured))["sdpa"]
    assert gain.predicted is gain.gain is None
    assert gain.source.startswith("not computed: ")
    assert "the attention that the module calls" in gain.source


def test_a_form_of_the_optimizer_has_a_gain(diagnosis):
    found = gains(diagnosis(captured))
    for name in ("fused-optimizer", "triton-optimizer"):
        assert found[name][1].predicted.estimate > 1


def test_without_a_capture_the_levers_stay_and_the_reason_is_told(diagnosis):
    _, gain = gains(diagnosis(refused))["fused-optimizer"]
    assert gain.source == "not computed: its operators depend on values"


def test_levers_that_a_factorys_module_cannot_take_from_outside_are_left_to_the_advice(diagnosis):
    """Its attention is replaced inside it; its cache is its own."""
    names = gains(diagnosis(refused)).keys()
    assert "sdpa" in names
    assert "flash-decode" not in names
