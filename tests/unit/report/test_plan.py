"""What a plan's report leads with; the golden files hold it whole."""

import msgspec
import pytest

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.planning.plan import plan
from peakward.prediction.planning.site import site
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.report.format import format_spread
from peakward.report.plan import summary, whole


def planned(
    *keys, seq_len=512, size="small", limit_bytes=None, pass_="train_step", **configuration
):
    case = ModelCase(
        model=model(size),
        workload=Workload(batch_size=4, seq_len=seq_len, pass_=pass_),
        configuration=Configuration(**configuration),
        device="cuda",
        memory_limit_bytes=limit_bytes,
    )
    return plan(case, [site(device(key)) for key in keys], command="peakward plan")


def step(found):
    return format_spread(found.step_s, "s")


def test_the_fastest_device_that_it_fits_leads():
    found = planned("l4-24", "h100-sxm-80")
    best = found.devices[1].forecast
    assert summary(found).headline == f"NVIDIA H100 SXM 80 GB: {step(best)} a step, and it fits"


def test_where_none_fits_what_makes_it_fit_leads():
    found = planned("h100-sxm-80", size="2.7B", seq_len=4096)
    together = found.devices[0].composition
    said = summary(found).headline
    assert said.startswith("It fits no device as it is; with ")
    assert " + ".join(together.levers) in said
    assert said.endswith(step(together))


def test_a_device_without_a_time_may_fit_it_as_it_is():
    found = planned("h100-sxm-80", "mi300x-192", size="2.7B", seq_len=2048)
    assert found.devices[1].forecast.fits
    assert summary(found).headline.startswith(
        "It fits no device whose time is known as it is; with "
    )


def test_where_nothing_makes_it_fit_the_time_is_as_if_it_did():
    found = planned("h100-sxm-80", limit_bytes=2**20)
    assert summary(found).headline.endswith("a step, if it fitted")
    assert "Times there assume that it does" in summary(found).blocks[0].text


def test_where_memory_is_not_predicted_it_is_not_said_to_fit_nowhere():
    found = planned("h100-sxm-80", attention="sdpa-math")
    assert found.devices[0].forecast.fits is None
    said = summary(found).headline
    assert said.startswith("It is not known to fit a device as it is; with ")
    alone = msgspec.structs.replace(found.devices[0], composition=None)
    said = summary(msgspec.structs.replace(found, devices=(alone,))).headline
    assert said.endswith("a step; whether it fits is not known")


@pytest.mark.parametrize("pass_", ["prefill", "decode", "forward"])
def test_of_passes_with_a_cache_it_says_whose_intervals_they_have(pass_):
    texts = [getattr(each, "text", "") for each in summary(planned("h200-141", pass_=pass_)).blocks]
    assert any("passes without a cache" in text for text in texts) == (pass_ != "forward")


def test_without_times_it_says_so():
    assert summary(planned("mi300x-192")).headline == "No step time could be computed"


def test_what_was_not_computed_is_named_once_for_all_that_lack_it():
    found = planned("t4-16", "v100-sxm2-32")
    (section,) = [each for each in whole(found).sections if each.title == "Not computed"]
    rows = [row for row in section.blocks[0].table.rows if row[0] == "all"]
    assert len({row[2] for row in rows}) == len(rows)
