"""Levers on top of one another."""

import msgspec
import pytest

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.planning.changes import LEAST_GAIN, Base, changes, gain
from peakward.prediction.planning.composition import composition
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.site import site
from peakward.records.case import Configuration, ModelCase, Workload

H100 = site(device("h100-sxm-80"))


def case(size="2.7B", seq_len=512, pass_="train_step", **configuration):
    return ModelCase(
        model=model(size),
        workload=Workload(batch_size=4, seq_len=seq_len, pass_=pass_),
        configuration=Configuration(**configuration),
        device="cuda",
    )


def composed(asked, on=H100):
    base = Base(asked, forecast(asked, on))
    return composition(base, changes(base, on), on)


def test_it_is_faster_than_each_lever_alone():
    base = Base(case(), forecast(case(), H100))
    alone = changes(base, H100)
    found = composition(base, alone, H100)
    assert gain(found.change) > max(gain(each) for each in alone)
    assert found.change.step_s == forecast(found.case, H100).step_s


def test_one_lever_sets_a_field():
    fields = [name for name in composed(case()).change.levers if name in PRECISIONS]
    assert len(fields) == 1


PRECISIONS = ("tf32", "bf16-mixed", "fp16-mixed", "bf16", "fp8")


def test_what_does_not_fit_is_made_to_fit_at_the_least_cost():
    """2.7B at 4 × 4096 with naive scores: 32 blocks of 32 heads of 4096², in fp32 and more."""
    asked = case(seq_len=4096)
    assert forecast(asked, H100).fits is False
    found = composed(asked)
    assert found.change.fits is not False
    assert found.change.step_s is not None


def test_two_savers_of_memory_go_together_where_one_is_not_enough():
    """Logits of 65,536 tokens and 128,256 words, and the activations of 8 wide blocks."""
    shape = msgspec.structs.replace(model("llama-3-8b"), n_layers=8)
    asked = msgspec.structs.replace(
        case(precision="bf16", attention="sdpa"),
        model=shape,
        workload=Workload(batch_size=16, seq_len=4096),
    )
    found = composed(asked)
    assert {"chunked-loss", "checkpointing"} <= set(found.change.levers)
    assert found.change.fits
    for without in ({"loss": "torch"}, {"checkpointing": "none"}):
        settings = msgspec.structs.replace(found.case.configuration, **without)
        one = msgspec.structs.replace(found.case, configuration=settings)
        assert forecast(one, H100).fits is False


def test_where_nothing_makes_it_fit_the_fastest_is_told_as_it_is():
    found = composed(case("llama-3-8b", seq_len=4096), site(device("t4-16")))
    assert found is None  # No times are known there.
    found = composed(case("llama-3-8b", seq_len=4096), site(device("rtx-4090-24")))
    assert found.change.fits is False
    assert gain(found.change) > LEAST_GAIN


def test_where_no_lever_gains_there_is_none():
    best = composed(case()).case
    limited = msgspec.structs.replace(best, memory_limit_bytes=None)
    again = composed(limited)
    assert again is None or gain(again.change) > LEAST_GAIN


@pytest.mark.parametrize("pass_", ["forward", "forward_backward"])
def test_levers_of_other_passes_stay_out(pass_):
    names = composed(case(pass_=pass_)).change.levers
    assert "fused-optimizer" not in names


def test_a_model_too_large_to_decode_is_quantised():
    """Of 10 GiB llama-3-8b takes 5.7 GB in 4 bits and bf16, 9.1 in 8, and what is drawn last 2.1 beside."""
    asked = msgspec.structs.replace(
        case("llama-3-8b", precision="fp32", pass_="decode"), memory_limit_bytes=10 << 30
    )
    on = site(device("l4-24"))
    assert forecast(asked, on).fits is False
    found = composed(asked, on)
    assert found.case.configuration.weights == "int4:128"
    assert found.change.fits is True


def test_what_trains_is_never_quantised():
    asked = msgspec.structs.replace(case("llama-3-8b"), memory_limit_bytes=10 << 30)
    found = composed(asked)
    assert found is None or found.case.configuration.weights == "dense"
