"""A device as a plan sees it."""

from peakward.hardware.devices import device, least_memory_bytes
from peakward.prediction.planning.site import site


def test_what_it_offers_unless_the_case_takes_less():
    on = site(device("h100-sxm-80"))
    assert on.limit_bytes(None) == least_memory_bytes(on.device)
    assert on.limit_bytes(2**30) == 2**30
    assert on.limit_bytes(2**50) == least_memory_bytes(on.device)


def test_without_a_model_of_its_times_it_says_why():
    on = site(device("mi300x-192"))
    assert on.model is None
    assert "MI300X" in on.why_no_model
    assert site(device("l4-24")).why_no_model == ""
