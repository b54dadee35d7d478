"""Each lever by itself."""

import msgspec
import pytest

from peakward.hardware.devices import device
from peakward.levers.catalogue import LEVERS, lever, pull
from peakward.models.presets import model
from peakward.prediction.planning.changes import (
    LEAST_GAIN,
    Base,
    change,
    changes,
    composition,
    foretold,
    gain,
    obstacle,
    pulled,
    relief,
)
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.site import site
from peakward.records.case import Configuration, ModelCase, Workload

H100, A100 = site(device("h100-sxm-80")), site(device("a100-sxm-80"))


def based(asked, on):
    return Base(asked, forecast(asked, on))


def case(pass_="train_step", **configuration):
    return ModelCase(
        model=model("2.7B"),
        workload=Workload(batch_size=4, seq_len=512, pass_=pass_),
        configuration=Configuration(**configuration),
        device="cuda",
    )


def test_every_lever_that_changes_the_case_is_there_the_greatest_gain_first():
    found = changes(based(case(precision="bf16"), H100), H100)
    names = [name for each in found for name in each.levers]
    # A case keeps its keys and values by default: what `kv-cache` sets is set.
    assert set(names) == {each.name for each in LEVERS} - {"bf16", "kv-cache"}
    gains = [gain(each) for each in found]
    assert gains == sorted(gains, reverse=True)


def test_a_lever_s_gain_is_the_ratio_of_two_forecasts():
    base = based(case(), H100)
    found = change((lever("bf16"),), base, H100)
    other = forecast(case(precision="bf16"), H100)
    assert found.step_s == other.step_s
    assert found.speedup.estimate == pytest.approx(
        base.forecast.step_s.estimate / other.step_s.estimate
    )
    assert found.speedup.low < found.speedup.estimate < found.speedup.high
    assert found.needed_bytes == other.needed_bytes < base.forecast.needed_bytes


def test_a_lever_that_costs_time_is_said_to():
    found = change((lever("checkpointing"),), based(case(), H100), H100)
    assert found.speedup.high < 1
    assert found.needed_bytes < forecast(case(), H100).needed_bytes


def test_what_cannot_apply_has_no_figures_and_a_reason():
    found = change((lever("fp8"),), based(case(), A100), A100)
    assert found.step_s is found.speedup is found.needed_bytes is found.fits is None
    assert [each.figure for each in found.absent] == ["all"]
    assert "8.9, got 8.0" in found.absent[0].reason
    assert obstacle((lever("fp8"),), case(), H100) is None


def test_a_lever_may_need_another_before_it():
    cudnn = lever("sdpa-cudnn")
    assert "needs the precision" in obstacle((cudnn,), case(), H100)
    assert obstacle((lever("bf16"), cudnn), case(), H100) is None
    both = pulled(case(), (lever("bf16"), cudnn)).configuration
    assert (both.precision, both.attention) == ("bf16", "sdpa-cudnn")


# The predicted effect of a lever, from two forecasts.

HERE = site(device("h100-sxm-80"))
BASE = ModelCase(model=model("small"), workload=Workload(batch_size=4, seq_len=512), device="cuda")


def told(name, base=BASE):
    return foretold(forecast(base, HERE), forecast(pull(lever(name), base), HERE))


def test_the_time_ratio_is_that_of_a_plan_upside_down():
    planned = change((lever("bf16"),), Base(BASE, forecast(BASE, HERE)), HERE).speedup
    ratio = told("bf16").time_ratio
    assert ratio.estimate == pytest.approx(1 / planned.estimate)
    assert (ratio.low, ratio.high) == pytest.approx((1 / planned.high, 1 / planned.low))
    assert ratio.level == planned.level


def test_checkpointing_is_foretold_to_be_slower_and_smaller():
    found = told("checkpointing")
    assert found.time_ratio.estimate > 1
    assert found.memory_ratio < 1
    assert found.absent == ()


def test_what_a_forecast_lacks_is_absent_with_its_reason():
    found = told("fp8")
    for figure, ratio in (("time", found.time_ratio), ("memory", found.memory_ratio)):
        gaps = [gap for gap in found.absent if gap.figure == figure]
        assert (ratio is None) == bool(gaps)
        assert all(gap.reason for gap in gaps)


# Levers on top of one another.

COMPOSITION_H100 = site(device("h100-sxm-80"))


def composition_case(size="2.7B", seq_len=512, pass_="train_step", **configuration):
    return ModelCase(
        model=model(size),
        workload=Workload(batch_size=4, seq_len=seq_len, pass_=pass_),
        configuration=Configuration(**configuration),
        device="cuda",
    )


def composed(asked, on=COMPOSITION_H100):
    base = Base(asked, forecast(asked, on))
    return composition(base, changes(base, on), on)


def test_it_is_faster_than_each_lever_alone():
    base = Base(composition_case(), forecast(composition_case(), COMPOSITION_H100))
    alone = changes(base, COMPOSITION_H100)
    found = composition(base, alone, COMPOSITION_H100)
    assert gain(found.change) > max(gain(each) for each in alone)
    assert found.change.step_s == forecast(found.case, COMPOSITION_H100).step_s


def test_one_lever_sets_a_field():
    fields = [name for name in composed(composition_case()).change.levers if name in PRECISIONS]
    assert len(fields) == 1


PRECISIONS = ("tf32", "bf16-mixed", "fp16-mixed", "bf16", "fp8")


def test_what_does_not_fit_is_made_to_fit_at_the_least_cost():
    """2.7B at 4 × 4096 with naive scores: 32 blocks of 32 heads of 4096², in fp32 and more."""
    asked = composition_case(seq_len=4096)
    assert forecast(asked, COMPOSITION_H100).fits is False
    found = composed(asked)
    assert found.change.fits is not False
    assert found.change.step_s is not None


def test_two_savers_of_memory_go_together_where_one_is_not_enough():
    """Logits of 65,536 tokens and 128,256 words, and the activations of 8 wide blocks."""
    shape = msgspec.structs.replace(model("llama-3-8b"), n_layers=8)
    asked = msgspec.structs.replace(
        composition_case(precision="bf16", attention="sdpa"),
        model=shape,
        workload=Workload(batch_size=16, seq_len=4096),
    )
    found = composed(asked)
    assert "checkpointing" in found.change.levers
    assert found.case.configuration.loss in ("chunked", "fused"), "neither stores the logits"
    assert found.change.fits
    for without in ({"loss": "torch"}, {"checkpointing": "none"}):
        settings = msgspec.structs.replace(found.case.configuration, **without)
        one = msgspec.structs.replace(found.case, configuration=settings)
        assert forecast(one, COMPOSITION_H100).fits is False


def test_where_nothing_makes_it_fit_the_fastest_is_told_as_it_is():
    found = composed(composition_case("llama-3-8b", seq_len=4096), site(device("t4-16")))
    assert found is None  # No times are known there.
    found = composed(composition_case("llama-3-8b", seq_len=4096), site(device("rtx-4090-24")))
    assert found.change.fits is False
    assert gain(found.change) > LEAST_GAIN


def test_where_no_lever_gains_there_is_none():
    best = composed(composition_case()).case
    limited = msgspec.structs.replace(best, memory_limit_bytes=None)
    again = composed(limited)
    assert again is None or gain(again.change) > LEAST_GAIN


@pytest.mark.parametrize("pass_", ["forward", "forward_backward"])
def test_levers_of_other_passes_stay_out(pass_):
    names = composed(composition_case(pass_=pass_)).change.levers
    assert "fused-optimizer" not in names


def test_a_model_too_large_to_decode_is_quantised():
    """Of 10 GiB llama-3-8b takes 5.7 GB in 4 bits and bf16, 9.1 in 8, and what is drawn last 2.1 beside."""
    asked = msgspec.structs.replace(
        composition_case("llama-3-8b", precision="fp32", pass_="decode"),
        memory_limit_bytes=10 << 30,
    )
    on = site(device("l4-24"))
    assert forecast(asked, on).fits is False
    found = composed(asked, on)
    assert found.case.configuration.weights == "int4:128"
    assert found.change.fits is True


def test_what_trains_is_never_quantised():
    asked = msgspec.structs.replace(composition_case("llama-3-8b"), memory_limit_bytes=10 << 30)
    found = composed(asked)
    assert found is None or found.case.configuration.weights == "dense"


# Which levers would make a case fit.

CARD = site(device("rtx-4090-24"))


def relief_case(batch_size):
    workload = Workload(batch_size=batch_size, seq_len=512)
    return ModelCase(model=model("medium"), workload=workload, device="cuda")


def test_each_of_them_makes_it_fit_and_no_other_does():
    asked = relief_case(16)
    told = forecast(asked, CARD)
    found = relief(asked, told, CARD)
    assert told.fits is False
    assert {"checkpointing", "bf16"} <= set(found)
    assert all(forecast(pull(lever(name), asked), CARD).fits for name in found)
    assert "tf32" not in found


def test_of_what_fits_or_may_there_is_none():
    asked = relief_case(1)
    told = forecast(asked, CARD)
    assert told.fits is True
    assert relief(asked, told, CARD) == ()
    assert relief(asked, msgspec.structs.replace(told, fits=None), CARD) == ()
