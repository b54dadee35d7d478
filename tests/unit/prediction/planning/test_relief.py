"""Which levers would make a case fit."""

import msgspec

from peakward.hardware.devices import device
from peakward.levers.catalogue import lever, pull
from peakward.models.presets import model
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.relief import relief
from peakward.prediction.planning.site import site
from peakward.records.case import ModelCase, Workload

CARD = site(device("rtx-4090-24"))


def case(batch_size):
    workload = Workload(batch_size=batch_size, seq_len=512)
    return ModelCase(model=model("medium"), workload=workload, device="cuda")


def test_each_of_them_makes_it_fit_and_no_other_does():
    asked = case(16)
    told = forecast(asked, CARD)
    found = relief(asked, told, CARD)
    assert told.fits is False
    assert {"checkpointing", "bf16"} <= set(found)
    assert all(forecast(pull(lever(name), asked), CARD).fits for name in found)
    assert "tf32" not in found


def test_of_what_fits_or_may_there_is_none():
    asked = case(1)
    told = forecast(asked, CARD)
    assert told.fits is True
    assert relief(asked, told, CARD) == ()
    assert relief(asked, msgspec.structs.replace(told, fits=None), CARD) == ()
