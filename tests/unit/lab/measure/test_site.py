"""Where a worker runs, as far as a machine without a GPU can tell."""

import msgspec
import pytest
import torch

from peakward.lab.measure.clock import CpuClock
from peakward.lab.measure.crowd import Crowd
from peakward.lab.measure.memory import CpuMeter
from peakward.lab.measure.site import Site
from peakward.records.case import ModelCase, Workload


@pytest.fixture(scope="module")
def site():
    return Site()


def test_a_cpu_s_instruments(site):
    site.enter("cpu")
    assert isinstance(site.clock("cpu"), CpuClock)
    assert isinstance(site.meter("cpu"), CpuMeter)
    with site.watch("cpu") as watch:
        pass
    assert isinstance(watch, Crowd)
    assert watch.telemetry(1) is None
    assert site.held_bytes("cpu") == 0


def test_what_was_freed_is_clean_and_a_leak_is_not(site):
    site.enter("cpu")
    held = torch.ones(2**30, dtype=torch.uint8)
    assert not site.leave("cpu")
    del held
    assert site.leave("cpu")


def test_the_case_s_limit_holds_inside(site, make_shape):
    workload = Workload(batch_size=1, seq_len=8)
    case = ModelCase(model=make_shape(), workload=workload, device="cpu")
    limited = msgspec.structs.replace(case, memory_limit_bytes=3 * 2**30)
    with site.limited(limited), pytest.raises(RuntimeError, match="can't allocate"):
        torch.empty(4 * 2**30, dtype=torch.uint8)
    with site.limited(case):
        torch.empty(4 * 2**30, dtype=torch.uint8)
