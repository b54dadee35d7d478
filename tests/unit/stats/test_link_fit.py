"""A latency and a rate from times of a collective, and times between them."""

import pytest

from peakward.records.parallel import CollectiveTime
from peakward.stats.link_fit import bus_bytes, fitted, interpolated_s

LATENCY_S, RATE = 20e-6, 300e9


def times(sizes, collective="all-reduce", n_ranks=4, noise=1.0):
    found = []
    for at, n_bytes in enumerate(sizes):
        sent = bus_bytes(collective, n_bytes, n_ranks)
        time_s = (LATENCY_S + sent / RATE) * (noise if at % 2 else 1 / noise)
        found.append(
            CollectiveTime(
                collective=collective, n_bytes=n_bytes, time_s=time_s, bus_bytes_per_s=sent / time_s
            )
        )
    return found


@pytest.mark.parametrize("collective", ["all-reduce", "all-gather", "point-to-point"])
def test_a_latency_and_a_rate_are_found_again(collective):
    fit = fitted(times([10**6, 10**7, 10**8, 10**9], collective), 4)
    assert fit.latency_s == pytest.approx(LATENCY_S, rel=1e-6)
    assert fit.bus_bytes_per_s == pytest.approx(RATE, rel=1e-6)
    assert fit.worst_error < 1e-6


def test_the_error_is_that_of_the_worst_size():
    fit = fitted(times([10**6, 10**7, 10**8, 10**9], noise=1.1), 4)
    assert 0.05 < fit.worst_error < 0.15


def test_no_latency_is_below_zero():
    fit = fitted(
        [
            CollectiveTime(collective="all-gather", n_bytes=10**6, time_s=1e-6, bus_bytes_per_s=1),
            CollectiveTime(collective="all-gather", n_bytes=10**8, time_s=1.0, bus_bytes_per_s=1),
        ],
        2,
    )
    assert fit.latency_s == 0.0 and fit.bus_bytes_per_s > 0


def test_bytes_on_the_bus_are_those_of_nccl_tests():
    assert bus_bytes("all-reduce", 100.0, 4) == 150.0
    assert bus_bytes("reduce-scatter", 100.0, 4) == 75.0
    assert bus_bytes("point-to-point", 100.0, 4) == 100.0


def test_measured_sizes_have_their_measured_times_and_others_lie_between():
    rows = times([10**6, 10**7, 10**8])
    assert interpolated_s(rows, 10**7) == pytest.approx(rows[1].time_s)
    assert rows[1].time_s < interpolated_s(rows, 3 * 10**7) < rows[2].time_s
    assert interpolated_s(rows, 10**3) == rows[0].time_s
    assert interpolated_s(rows, 10**9) == pytest.approx(10 * rows[2].time_s)


def test_one_size_has_no_fit():
    with pytest.raises(ValueError, match="two sizes"):
        fitted(times([10**6]), 4)
