"""What is said before anything is measured."""

import msgspec
import pytest

from peakward.catalogue.devices import device
from peakward.catalogue.models import model
from peakward.cli.run import expectation
from peakward.prediction.floor import floor
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.site import site
from peakward.records.case import ModelCase, Workload

CARD = device("rtx-4090-24")


@pytest.fixture
def said():
    """said(batch_size, fitting): of `medium` on a card of 24 GB."""

    def say(batch_size, fitting=()):
        workload = Workload(batch_size=batch_size, seq_len=512)
        case = ModelCase(model=model("medium"), workload=workload, device="cuda")
        told = forecast(case, site(CARD))
        return expectation(case, floor(case, calibration=None, device=CARD), told, fitting)

    return say


def test_what_fits_is_said_with_what_it_needs(said):
    assert said(1).startswith("at most ")
    assert "; predicted " in said(1)
    assert said(1).endswith(" GiB of memory")


def test_what_does_not_fit_is_said_with_the_levers_that_help(said):
    assert said(64).endswith(", which does not fit 23.3 GiB")
    told = said(16, ("checkpointing", "bf16"))
    assert told.endswith(", which does not fit 23.3 GiB, but would with checkpointing or bf16")


def test_on_a_device_that_nobody_catalogued_the_floor_stands_alone(said):
    case = ModelCase(
        model=model("medium"), workload=Workload(batch_size=1, seq_len=8), device="cpu"
    )
    unknown = msgspec.structs.replace(floor(case, calibration=None, device=CARD), floor_s=None)
    assert expectation(case, unknown, None, ()).startswith("no floor: ")
