"""What `hierarchy` says, by hand."""

import pytest

from peakward.hardware.devices import device
from peakward.records.calibration import TrafficRate
from peakward.studies import hierarchy
from peakward.studies.hierarchy import conclusions
from peakward.studies.hierarchy.levels import read
from peakward.studies.hierarchy.moves import WEIGHTS, routes
from peakward.studies.readings import Readings


@pytest.fixture
def cpu(calibration):
    return calibration("cpu")


def test_the_descent(cpu, figures):
    (said,) = conclusions.descent(read(cpu, None), cpu)
    assert said.text == (
        "Reading: L1 100 GB/s at 1.00 ns a load, L2 50.0 GB/s at 4.00 ns a load, L3 45.0 GB/s at "
        "15.0 ns a load, memory 20.0 GB/s at 100 ns a load; L1 is 5.00× as fast as memory, whose "
        "loads take 100× the time."
    )
    assert figures(said)["rates, first over last"] == 5
    assert said.evidence[0].from_ids == (cpu.id,)


def test_the_descent_without_latencies_speaks_of_rates_alone(calibration):
    measured = calibration("cuda", latency=())
    (said,) = conclusions.descent(read(measured, None), measured)
    assert said.text == "Reading: L2 12,000 GB/s, memory 4,200 GB/s; L2 is 2.86× as fast as memory."


def test_bytes_on_their_way(cpu, figures):
    (said,) = conclusions.in_flight(read(cpu, None), cpu)
    assert figures(said)["rate × latency"] == pytest.approx(20e9 * 100e-9)


def test_a_cache_that_does_not_reach_as_far_as_it_says(cpu, figures):
    (said,) = conclusions.reach(cpu.rates, cpu)
    assert said.text == (
        "L3 is said to hold 32.0 MiB, but a load from a working set of 8.00 MiB takes 4.00× what one "
        "of 2.00 MiB takes, 15.0 ns."
    )


def test_where_a_copy_reaches_half_of_memory_s_rate(cpu, figures):
    half, highest = conclusions.copies(cpu.rates, cpu)
    known = figures(half)
    assert known["size of the best rate in memory"] == 256 * 2**20
    assert known["smallest of half the rate"] == 2 * 2**20
    assert known["rate of the smallest"] == pytest.approx(4 / 20)
    assert highest.text == (
        "The highest rate of a copy, 30.0 GB/s, is not memory's: its two tensors of 2.00 MiB take "
        "4.00 MiB together, which L3 can hold (32.0 MiB)."
    )


def test_the_highest_rate_is_memory_s_own_where_memory_is_as_fast(calibration):
    rates = [
        TrafficRate(operation="copy", size_bytes=size, bytes_per_s=rate)
        for size, rate in ((4096, 1e9), (256 * 2**20, 20e9))
    ]
    measured = calibration("cpu", traffic=tuple(rates))
    (said,) = conclusions.copies(measured.rates, measured)
    assert said.text.startswith("Copies out of memory and back reach 20.0 GB/s")


def test_the_smallest_copy_may_be_above_memory_s_rate(calibration):
    rates = [
        TrafficRate(operation="copy", size_bytes=size, bytes_per_s=rate)
        for size, rate in ((4096, 40e9), (256 * 2**20, 20e9))
    ]
    measured = calibration("cpu", traffic=tuple(rates))
    half, _ = conclusions.copies(measured.rates, measured)
    assert half.text.endswith("Even the smallest, of 4.00 KiB, are copied at 200% of it.")


def test_no_rate_is_said_to_be_memory_s_without_a_copy_that_reaches_it(calibration):
    rates = [
        TrafficRate(operation="copy", size_bytes=size, bytes_per_s=rate)
        for size, rate in ((4096, 1e9), (2**20, 20e9))
    ]
    measured = calibration("cpu", traffic=tuple(rates))
    assert conclusions.copies(measured.rates, measured) == ()


def test_the_ways_of_the_weights_from_the_quickest(cpu, figures):
    ways = routes(read(cpu, None), cpu.rates.traffic, "cpu")
    (said,) = conclusions.ways(ways, WEIGHTS, cpu)
    times = list(figures(said).items())[2:]
    assert [name for name, _ in times] == [
        "memory → cores",
        "memory → memory",
        "disk → memory",
        "disk → cores",
    ]
    assert [time_s for _, time_s in times] == sorted(time_s for _, time_s in times)
    quickest, slowest = times[0][1], times[-1][1]
    assert figures(said)["slowest over quickest"] == pytest.approx(slowest / quickest)


def test_shares_of_the_datasheet(calibration):
    measured, h200 = calibration("cuda"), device("h200-141")
    (said,) = conclusions.against_datasheet(read(measured, h200), measured, h200)
    assert said.text.startswith("Of the datasheet: memory 87.5% of 4,800 GB/s, host link (pinned,")
    assert said.evidence[0].from_ids == (measured.id, "h200-141")
    assert conclusions.against_datasheet(read(measured, None), measured, None) == ()


def test_of_nothing_nothing_is_said(calibration, setting):
    measured = calibration("cpu", levels=(), latency=(), traffic=(), disk=())
    readings = Readings()
    assert hierarchy.parts(readings, setting(device="cpu")).conclusions == ()
    readings.calibration = measured
    assert hierarchy.parts(readings, setting(device="cpu")).conclusions == ()


def test_what_was_measured_beside_other_work_says_so(calibration, setting):
    doubts = ("traffic: other work took 20% of the cores", "products: other work took 30%")
    readings = Readings()
    readings.calibration = calibration("cpu", doubts=doubts)
    said = hierarchy.parts(readings, setting(device="cpu"))
    marked = [each.text for each in said.conclusions if "beside other work" in each.text]
    assert len(marked) == 3, "two of copies, and of the ways that hold one"
    assert all(
        each.endswith(" (Measured beside other work: traffic; see the notes.)") for each in marked
    )
    assert "Traffic: other work took 20% of the cores: its figures may be too slow." in said.notes
    assert not any("30%" in each for each in said.notes)
    assert "Not measured: link: a reason." in said.notes
    assert any("one buffer of 8 MiB, which a cache may hold" in each for each in said.notes)
