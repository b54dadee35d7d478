"""Levels read off a calibration, beside a datasheet."""

import msgspec
import pytest

from peakward.hardware.devices import device
from peakward.records.calibration import LevelRate, Rates
from peakward.records.errors import PeakwardError
from peakward.studies.hierarchy.levels import fits_into, read

H200 = device("h200-141")
MIB = 2**20


def by_name(*given):
    return {each.name: each for each in read(*given)}


def test_a_cpu_s_levels_at_their_best(calibration):
    found = by_name(calibration("cpu"), None)
    assert list(found) == ["L1", "L2", "L3", "memory", "disk", "page cache"]
    l3, memory = found["L3"], found["memory"]
    assert (l3.bytes_per_s, l3.latency_s, l3.capacity_bytes) == (45e9, 15e-9, 32 * MIB)
    assert (memory.bytes_per_s, memory.latency_s) == (20e9, 100e-9)
    assert memory.capacity_bytes == 80 * 2**30
    assert {each.share for each in found.values()} == {None}


def test_a_transfer_s_latency_is_that_of_its_smallest(calibration):
    found = by_name(calibration("cpu"), None)
    assert found["disk"].latency_s == pytest.approx(1e-4)
    assert found["disk"].bytes_per_s == 2e9
    assert found["page cache"].latency_s is None, "one size was measured"
    link = by_name(calibration("cuda"), None)["host link (pinned, to device)"]
    assert link.latency_s == pytest.approx(4096 / 2e9)
    assert link.ends == ("host memory, pinned", "memory")


def test_shares_are_of_the_datasheet(calibration):
    found = by_name(calibration("cuda"), H200)
    assert found["memory"].share == pytest.approx(4.2 / 4.8)
    assert found["host link (pinned, to host)"].share == pytest.approx(50 / 64)
    assert found["L2"].share is None


def test_more_than_the_datasheet_is_refused(calibration):
    measured = calibration("cuda")
    too_fast = (LevelRate(level="memory", working_set_bytes=2**30, bytes_per_s=4.9e12),)
    rates = msgspec.structs.replace(measured.rates, levels=too_fast)
    (memory, *_) = read(msgspec.structs.replace(measured, rates=rates), H200)
    with pytest.raises(
        PeakwardError, match=r"memory to be no faster than .* 4,800 GB/s, got 4,900"
    ):
        _ = memory.share


def test_without_latencies_times_are_not_known(calibration):
    found = by_name(calibration("cpu", latency=()), None)
    assert found["L1"].latency_s is None
    assert found["L1"].time_s(1000) is None
    assert by_name(calibration("cpu"), None)["L1"].time_s(1000) == pytest.approx(1e-9 + 1e-8)


def test_a_quick_calibration_has_no_levels(calibration):
    assert read(msgspec.structs.replace(calibration(), rates=None), None) == ()


@pytest.mark.parametrize(
    ("both_bytes", "level"),
    [(2 * 16 * 2**20, "L2"), (50 * 2**20, "L2"), (2**28, None), (2**30, "memory")],
)
def test_the_level_that_can_hold_the_tensors_of_a_copy(both_bytes, level):
    rates = Rates(
        levels=(
            LevelRate(
                level="L2", working_set_bytes=2**22, capacity_bytes=50 * 2**20, bytes_per_s=8e12
            ),
            LevelRate(level=None, working_set_bytes=2**28, bytes_per_s=3e12),
            LevelRate(level="memory", working_set_bytes=2**30, bytes_per_s=3e12),
        )
    )
    assert fits_into(rates, both_bytes) == level
    assert fits_into(Rates(), both_bytes) is None, "nothing is known of the levels"
