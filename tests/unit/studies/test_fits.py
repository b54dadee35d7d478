"""Which measurement settles whether a case fits a limit."""

import msgspec
import pytest

from peakward.models.presets import model
from peakward.studies.cases import model_case
from peakward.studies.engine import Point
from peakward.studies.fits import GIB, LIMITS_BYTES, fit, limit_notes, limits, probe
from peakward.studies.readings import Readings

SMALL, MIDDLE, LARGE = LIMITS_BYTES
CASE = model_case(model("small"), 4, 128, "train_step", "cuda")


@pytest.fixture
def judge(setting, measure):
    """Whether CASE fits MIDDLE, given statuses under limits and, at None, without one."""

    def of(statuses, *, device="cuda", reserved=None, limit=MIDDLE, memory=80 * GIB):
        here = setting(device=device, memory=memory)
        free = (CASE, here.protocol())
        made = []
        for at, status in statuses.items():
            plan = free if at is None else probe(CASE, at, here)
            found = measure(*plan, here.environment, status, serial=at)
            if at is None and reserved is not None:
                use = msgspec.structs.replace(
                    found.memory, peak_reserved_bytes=reserved, context_bytes=GIB
                )
                found = msgspec.structs.replace(found, memory=use)
            made.append(found)
        point = Point(case=CASE, protocol=here.protocol())
        return fit(point, limit, Readings(made), here)

    return of


def test_a_measurement_under_the_limit_settles_it(judge):
    assert judge({MIDDLE: "ok"}).verdict == "fits"
    assert judge({MIDDLE: "oom"}).verdict == "oom"
    assert judge({MIDDLE: "crashed", SMALL: "ok"}).verdict == "crashed"


def test_what_fits_less_fits(judge):
    fits = judge({SMALL: "ok"})
    assert (fits.verdict, fits.proof.id) == ("fits", f"m{SMALL}")
    assert judge({SMALL: "oom"}) is None


def test_what_ran_out_of_more_does_not_fit(judge):
    assert judge({LARGE: "oom"}).verdict == "oom"
    assert judge({None: "oom"}).verdict == "oom"
    assert judge({LARGE: "ok"}) is None


def test_what_reserved_less_without_a_limit_fits(judge):
    assert judge({None: "ok"}, reserved=MIDDLE - GIB).verdict == "fits"
    assert judge({None: "ok"}, reserved=MIDDLE - GIB + 1) is None


def test_a_cpus_peak_settles_nothing(judge):
    assert judge({None: "ok"}, device="cpu") is None
    assert judge({None: "timeout"}) is None
    assert judge({}) is None


def test_a_limit_above_the_device_is_the_devices_own(judge):
    assert judge({None: "ok"}, limit=LARGE, memory=LARGE - 1).verdict == "fits"


def test_limits_far_beyond_the_device_are_left_out_and_named(setting):
    assert limits(setting(memory=24 * GIB)) == (SMALL,)
    (note,) = limit_notes(setting(memory=24 * GIB))
    assert "40 GiB, 80 GiB" in note


def test_a_card_of_80_gib_that_reports_a_little_less_is_one(setting):
    here = setting(memory=round(79.6 * GIB))
    assert limits(here) == LIMITS_BYTES
    assert "stands for" in limit_notes(here)[0]
