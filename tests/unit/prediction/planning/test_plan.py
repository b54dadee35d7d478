"""A case on several devices."""

from peakward.catalogue.devices import device
from peakward.catalogue.models import model
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.plan import plan
from peakward.prediction.planning.site import site
from peakward.records import codec
from peakward.records.case import ModelCase, Workload
from peakward.records.plan import Plan


def test_each_device_has_its_own():
    case = ModelCase(
        model=model("small"), workload=Workload(batch_size=4, seq_len=512), device="cuda"
    )
    sites = [site(device(key), price_per_gpu_hour=2.0) for key in ("h100-sxm-80", "l4-24")]
    found = plan(case, sites, command="peakward plan")
    assert [each.forecast for each in found.devices] == [forecast(case, on) for on in sites]
    large, small = found.devices
    assert large.largest_batch_size > small.largest_batch_size > 4
    assert large.price_per_gpu_hour == 2.0
    assert large.composed_case.configuration != case.configuration
    assert codec.from_json(codec.to_json(found), Plan) == found
