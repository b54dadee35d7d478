"""Ways between places, and the time of tensors on them, by hand."""

import pytest

from peakward.studies.hierarchy.levels import read
from peakward.studies.hierarchy.moves import WEIGHTS, Tensor, routes, tensors

MIB, GIB = 2**20, 2**30


@pytest.fixture
def ways(calibration):
    def make(device, **changes):
        measured = calibration(device, **changes)
        found = routes(read(measured, None), measured.rates.traffic, device)
        return {each.name: each for each in found}

    return make


def of(size):
    return Tensor(name="", size_bytes=size)


def test_the_tensors_by_hand():
    sizes = [each.size_bytes for each in tensors()]
    assert sizes[:4] == [1024, MIB, 64 * MIB, GIB]
    assert sizes[4] == 4 * 512 * 768 * 4 == 6 * MIB
    block = 4 * 2560**2 + 3 * 2560 * 10_240 + 2 * 2560
    assert WEIGHTS.size_bytes == 2 * (2 * 10_000 * 2560 + 32 * block + 2560)


def test_every_way_on_a_cpu(ways):
    assert list(ways("cpu")) == [
        "L1 → cores",
        "L2 → cores",
        "L3 → cores",
        "memory → cores",
        "memory → memory",
        "disk → memory",
        "page cache → memory",
        "disk → cores",
    ]


def test_every_way_on_a_gpu(ways):
    assert list(ways("cuda")) == [
        "L2 → multiprocessors",
        "memory → multiprocessors",
        "memory → memory",
        "host memory, pinned → memory",
        "memory → host memory, pinned",
        "host memory, pageable → memory",
        "memory → host memory, pageable",
        "disk → host memory",
        "page cache → host memory",
        "disk → memory",
    ]


def test_a_read_is_a_latency_and_then_the_rate(ways):
    time_s = ways("cpu")["memory → cores"].time_s(of(GIB))
    assert time_s == pytest.approx(100e-9 + GIB / 20e9)


def test_hops_come_one_after_another(ways):
    disk = 1e-4 + GIB / 2e9
    assert ways("cpu")["disk → cores"].time_s(of(GIB)) == pytest.approx(disk + 100e-9 + GIB / 20e9)
    assert ways("cuda")["disk → memory"].time_s(of(GIB)) == pytest.approx(
        disk + 4096 / 2e9 + GIB / 50e9
    )


def test_a_copy_takes_as_long_as_copies_of_that_size_took(ways):
    copy = ways("cuda")["memory → memory"]
    assert copy.time_s(of(2 * MIB)) == pytest.approx(2 * 2 * MIB / 30e9)
    assert copy.time_s(of(1024)) == pytest.approx(2 * 4096 / 4e9), "a launch"
    assert copy.time_s(of(GIB)) == pytest.approx(2 * GIB / 20e9)


def test_a_place_that_cannot_hold_the_tensor_has_no_time(ways):
    found = ways("cpu")
    assert found["L1 → cores"].time_s(of(32 * 1024)) is not None
    assert found["L1 → cores"].time_s(of(32 * 1024 + 1)) is None
    assert found["memory → memory"].time_s(of(40 * GIB)) is not None
    assert found["memory → memory"].time_s(of(41 * GIB)) is None


def test_a_hop_that_is_not_known_leaves_the_way_unknown(ways):
    assert ways("cpu")["page cache → memory"].time_s(of(GIB)) is None
    assert ways("cpu", latency=())["disk → cores"].time_s(of(GIB)) is None


def test_what_was_not_measured_is_no_way(ways):
    found = ways("cuda", link=(), traffic=())
    assert "disk → memory" not in found
    assert "memory → memory" not in found
    assert list(ways("cpu", disk=(), levels=())) == []
