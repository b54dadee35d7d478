"""Forecasts of a machine's cases, each made once."""

from types import SimpleNamespace

import msgspec
import pytest

from peakward.lab.levers.module_prediction import capture_case
from peakward.levers.catalogue import lever, pull
from peakward.prediction.planning.module import module_forecast
from peakward.records.calibration import MatmulRate
from peakward.records.case import StepCase
from peakward.records.errors import PeakwardError
from peakward.tune.forecasts import Expectations, Forecasts


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


def counting(asked):
    def capture(wanted):
        asked.append(wanted)
        return capture_case(wanted)

    return capture


def test_a_module_is_captured_once_for_its_eager_step_and_for_its_blocks_compiled(
    studies, make_module_case
):
    asked = []
    case = make_module_case("py:tiny_gpt:build", device="cuda")
    compiled = pull(lever("compile"), case)
    told = Forecasts(studies.H200, None, counting(asked))
    assert told.of(case) is told.of(case)
    assert (told.of(case).case, told.of(compiled).case) == (case, compiled)
    assert asked == [compiled]
    alone = module_forecast(capture_case(case), told.here)
    assert told.of(case).step_s == alone.step_s
    peak = alone.memory.peak_bytes
    assert told.of(case).memory.peak_bytes == pytest.approx(peak, rel=1e-4), "and the targets"
    assert told.of(compiled).time.operators != told.of(case).time.operators


def test_compiled_as_a_whole_it_is_captured_for_itself(studies, make_module_case):
    """Its code may do other than eagerly."""
    asked = []
    case = make_module_case("py:tiny_gpt:build", device="cuda")
    whole = pull(lever("compile-model"), case)
    told = Forecasts(studies.H200, None, counting(asked))
    assert told.of(case) is not None
    assert told.of(whole).time.bound
    assert asked == [pull(lever("compile"), case), whole]


def test_what_a_capture_would_not_see_is_never_asked_for(studies, make_module_case):
    told = Forecasts(studies.H200, None, unasked)
    compiled = make_module_case("py:tiny_gpt:build", device="cuda", compile="reduce-overhead")
    assert told.of(compiled) is None
    assert "compile reduce-overhead is not seen by operators" in told.why_none(compiled)


def test_fp8_is_foretold_and_not_tried_where_no_layer_can_have_it(studies, make_module_case):
    pytest.importorskip("transformers")

    def foretold(source):
        base = make_module_case(source, device="cuda", precision="bf16-mixed")
        told = Forecasts(studies.H200, None, capture_case)
        return told.of(pull(lever("fp8"), base)), told.needless(lever("fp8"), base)

    forecast, reason = foretold("hf:llama")
    assert forecast.time is not None
    assert reason is None
    forecast, reason = foretold("hf:gpt2")
    assert forecast is None
    assert "attn.c_attn is a Conv1D, no nn.Linear (2 layers)" in reason


def test_a_module_that_is_not_captured_may_be_tried_in_fp8(studies, make_module_case):
    def refuse(_case):
        raise PeakwardError("expected a module whose operators do not depend on values")

    base = make_module_case("py:tiny_gpt:build", device="cuda")
    assert Forecasts(studies.H200, None, refuse).needless(lever("fp8"), base) is None


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


def profile(**phases_ns):
    """Two profiled steps with so much kernel time in each phase."""
    groups = tuple(SimpleNamespace(phase=name, total_ns=ns) for name, ns in phases_ns.items())
    inner = SimpleNamespace(is_of_host=False, categories=groups)
    return SimpleNamespace(n_steps=2, profile=inner)


def expected(environment, calibration=None, found=None):
    forecasts = Forecasts(environment, calibration, capture=lambda case: None)
    return Expectations(forecasts, lambda case: found)


def test_on_a_catalogued_gpu_both_ratios_are_foretold(studies):
    here = expected(studies.H200, studies.CALIBRATION)
    told = here.foretold(studies.BASELINE, pull(lever("bf16"), studies.BASELINE))
    assert told.time_ratio.low < told.time_ratio.estimate < told.time_ratio.high < 1
    assert 0.3 < told.memory_ratio < 0.8, "bf16 has half the bytes of nearly everything"
    assert told.absent == ()


def test_elsewhere_the_reason_stands_in_their_place(studies):
    cpu = msgspec.structs.replace(studies.H200, device_type="cpu", device_name="A CPU")
    other = msgspec.structs.replace(studies.H200, device_name="Unheard-of GPU")
    candidate = pull(lever("bf16"), studies.BASELINE)
    for where, reason in ((cpu, "on a CPU"), (other, "Unheard-of GPU is not in the catalogue")):
        told = expected(where, studies.CALIBRATION).foretold(studies.BASELINE, candidate)
        assert told.time_ratio is told.memory_ratio is None
        assert [gap.figure for gap in told.absent] == ["time", "memory"]
        assert all(reason in gap.reason for gap in told.absent)


def test_a_change_of_the_optimiser_is_bound_by_the_other_phases(studies):
    found = profile(forward=2e9, backward=3e9, optimizer=5e9, other=4e9)
    here = expected(studies.H200, found=found)
    fused = pull(lever("fused-optimizer"), studies.BASELINE)
    bound = here.bound(studies.BASELINE, fused, base_s=10.0)
    assert (bound.basis, bound.least_time_ratio) == ("profile", pytest.approx(2.5 / 10))
    both = pull(lever("sdpa"), fused)
    assert here.bound(studies.BASELINE, both, base_s=10.0).basis == "floor", (
        "no phase is left alone"
    )


def test_any_change_is_bound_by_the_arithmetic_at_the_peak(studies):
    here = expected(studies.H200)
    bf16 = pull(lever("bf16"), studies.BASELINE)
    narrow, wide = (here.bound(studies.BASELINE, case, 1.0) for case in (bf16, studies.BASELINE))
    assert narrow.basis == wide.basis == "floor"
    assert 0 < narrow.least_time_ratio < wide.least_time_ratio
    assert here.bound(studies.BASELINE, bf16, 0.5).least_time_ratio == pytest.approx(
        2 * narrow.least_time_ratio
    )


def test_without_a_rate_there_is_no_bound(studies):
    other = msgspec.structs.replace(studies.H200, device_name="Unheard-of GPU")
    assert expected(other).bound(studies.BASELINE, studies.BASELINE, 1.0) is None


def test_where_a_type_multiplies_slower_a_lever_that_changes_to_it_cannot_gain(studies):
    """As on a CPU without instructions for bf16."""
    rates = (
        MatmulRate(compute_type="fp32", size=512, flops_per_s=1.6e11),
        MatmulRate(compute_type="bf16", size=512, flops_per_s=1.1e9),
    )
    here = expected(
        msgspec.structs.replace(studies.H200, device_name="Unheard-of GPU"),
        msgspec.structs.replace(studies.CALIBRATION, matmul=rates),
    )
    base, bf16 = studies.BASELINE, pull(lever("bf16"), studies.BASELINE)
    assert here.by_rates(base, bf16) == pytest.approx(1.6e11 / 1.1e9)
    assert here.by_rates(base, pull(lever("sdpa"), base)) is None
    assert here.by_rates(base, pull(lever("tf32"), base)) is None, "its rate is not known"
    least_s = here.bound(base, bf16, 1.0).least_time_ratio
    assert "its matrix products alone take at least" in here.hopeless(base, bf16, least_s / 2.1)
    assert here.hopeless(base, bf16, least_s / 1.9) is None, "of other sizes it may run faster"
    assert here.hopeless(base, base, least_s / 2.1) is None
    own_s = here.bound(base, base, 1.0).least_time_ratio
    assert here.hopeless(base, bf16, own_s / 1.1) is None, (
        "the base is faster than its own products"
    )


def test_a_lever_that_does_not_describe_its_work_is_foretold_and_bound_by_nothing(studies):
    here = expected(studies.H200, studies.CALIBRATION, profile(forward=2e9, optimizer=5e9))
    unknown = studies.BASELINE.configuration.with_settings({"pace": "fast"})
    candidate = msgspec.structs.replace(studies.BASELINE, configuration=unknown)
    told = here.foretold(studies.BASELINE, candidate)
    assert told.time_ratio is told.memory_ratio is None
    assert all("got pace fast" in gap.reason for gap in told.absent)
    assert here.bound(studies.BASELINE, candidate, base_s=10.0) is None
