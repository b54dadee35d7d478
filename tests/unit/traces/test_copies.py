"""Copies by direction, and sets."""

import pytest

from peakward.traces.copies import transfers
from peakward.traces.table import Direction, GpuKind

from .handmade import Gpu, table
from .real import A100, real

UP = Direction.HOST_TO_DEVICE


def copy(start, end, n_bytes, direction=UP, **others):
    return Gpu(start, end, kind=GpuKind.COPY, n_bytes=n_bytes, direction=direction, **others)


def test_by_direction_the_longest_first():
    up, down, sets = transfers(
        table(
            [
                copy(0, 10, 100),
                copy(5, 25, 300, stream=8),
                copy(5, 15, 100, device=1),
                copy(30, 39, 9, Direction.DEVICE_TO_HOST),
                Gpu(50, 52, kind=GpuKind.SET, n_bytes=64),
                Gpu(60, 70),
            ]
        )
    )
    assert (up.what, up.n, up.n_bytes, up.largest_bytes) == ("host_to_device", 3, 500, 300)
    assert (up.sum_ns, up.united_ns) == (40, 35)
    assert up.bytes_per_s == pytest.approx(500 / 40e-9)
    assert (down.what, down.n, down.bytes_per_s) == ("device_to_host", 1, pytest.approx(1e9))
    assert (sets.what, sets.n, sets.n_bytes, sets.sum_ns) == ("set", 1, 64, 2)


def test_unknown_sizes_stay_out_of_the_bandwidth():
    (found,) = transfers(table([copy(0, 10, -1), copy(20, 30, 50)]))
    assert (found.n, found.n_bytes, found.sum_ns) == (2, 50, 20)
    assert found.bytes_per_s == pytest.approx(5e9)
    (found,) = transfers(table([copy(0, 10, -1)]))
    assert (found.n_bytes, found.largest_bytes, found.bytes_per_s) == (0, None, None)


def test_copies_of_no_length_have_no_bandwidth():
    (found,) = transfers(table([copy(0, 0, 8)]))
    assert (found.n_bytes, found.bytes_per_s) == (8, None)


def test_no_copies():
    assert transfers(table([Gpu(0, 1)])) == transfers(table()) == ()


def test_a_real_trace():
    copies, sets = transfers(real(A100))
    assert (copies.what, copies.n, copies.n_bytes) == ("device_to_device", 960, 307323096)
    assert (copies.sum_ns, copies.largest_bytes) == (2262781, 9437184)
    assert (sets.n, sets.n_bytes, sets.sum_ns) == (114, 409141005, 390717)
