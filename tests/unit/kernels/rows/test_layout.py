"""How rows are laid over a GPU."""

import pytest
import torch

from peakward.kernels.ops.rows.layout import (
    RowSettings,
    ahead,
    alignment,
    as_rows,
    in_two,
    multiprocessors,
    power_of_two,
    shared_bytes,
    tiles,
    vector,
)


@pytest.mark.parametrize("inputs", [1, 2, 3, 4])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("width", [1, 17, 1000, 1024, 5000, 8192, 32768])
def test_a_thread_has_whole_accesses_and_some_64_bytes_in_flight(width, itemsize, inputs):
    chosen = tiles(width, itemsize=itemsize, inputs=inputs, most_columns=32768)
    for each in (chosen.rows, chosen.columns, chosen.warps):
        assert each == power_of_two(each)
    assert width <= chosen.columns < 2 * width
    assert 4 <= chosen.warps <= 32
    own_bytes = chosen.rows * chosen.columns * itemsize // (32 * chosen.warps)
    assert own_bytes % 16 == 0
    if chosen.warps < 32:
        # A power of two of warps that is next to what the row without its padding asks for.
        assert 16 < own_bytes * inputs * width / chosen.columns <= 64 * 2**0.5


def test_short_rows_share_a_tile_and_long_ones_have_several():
    assert tiles(1024, itemsize=2, most_columns=32768) == RowSettings(4, 1024, 4)
    assert tiles(8192, itemsize=2, most_columns=32768) == RowSettings(1, 8192, 8)
    assert tiles(65536, itemsize=2, most_columns=8192) == RowSettings(1, 8192, 8)
    assert tiles(5000, itemsize=2, most_columns=32768) == RowSettings(1, 8192, 4)


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize(
    "width", [2049, 2500, 3000, 5000, 10000, 18000, 24576, 33000, 40000, 49152]
)
def test_a_second_tile_has_what_is_beyond_a_power_of_two(width, itemsize):
    chosen = in_two(width, itemsize=itemsize)
    first, more = chosen.columns, chosen.more
    assert (chosen.rows, first) == (1, power_of_two(width) // 2)
    assert width <= chosen.held < 2 * first
    # Whole accesses of every thread, and as many of the first tile.
    assert more % (32 * chosen.warps * 16 // itemsize) == 0
    assert first % more == 0


@pytest.mark.parametrize("width", [1, 100, 1536, 2048, 3073, 4096, 49153, 65536])
def test_no_second_tile_is_as_wide_as_the_first_or_of_a_narrow_row(width):
    assert in_two(width, itemsize=2) is None


def test_programs_share_tiles_out_and_are_no_more_than_these():
    assert RowSettings(4, 1024, 4).grid(9) == (3,)
    assert RowSettings(1, 1024, 4, programs=8).grid(100) == (8,)
    assert RowSettings(1, 1024, 4, programs=8).grid(5) == (5,)


@pytest.mark.parametrize("columns", [1, 128, 256, 512, 1024, 4096, 16384])
def test_loaded_ahead_a_thread_has_32_elements_of_rows_that_its_warps_lie_along(columns):
    chosen = ahead(columns, itemsize=2, inputs=2, multiprocessors=132)
    n_threads = 32 * chosen.warps
    assert chosen.rows * columns in (32 * n_threads, 16 * n_threads)
    assert chosen.warps * 256 <= max(columns, 256)
    assert chosen.warps * chosen.programs >= 4 * 132


@pytest.mark.parametrize("inputs", [2, 3])
@pytest.mark.parametrize("width", [256, 1000, 1536, 2560, 4096, 5120, 8192])
def test_a_multiprocessor_has_46_kilobytes_in_flight_ahead_and_two_tiles(width, inputs):
    chosen = ahead(width, itemsize=2, inputs=inputs, multiprocessors=1)
    tiles_bytes = chosen.programs * chosen.rows * width * inputs * 2
    n_ahead = chosen.stages - 1
    assert n_ahead * tiles_bytes >= 46 << 10
    assert n_ahead == 2 or (n_ahead - 1) * tiles_bytes < 46 << 10


def test_alignment_is_of_all_extents():
    assert alignment(1000) == 8
    assert alignment(4096, 0, 4096) == 16
    assert alignment(4096, 17) == 1


def test_rows_have_edges_where_all_begin_or_end_alike_inside_a_vector():
    assert vector(2, 50257, 50257) == 8
    assert vector(4, 50257, 50257, 50257) == 4
    assert vector(2, 1003, 1003, 1011) == 8
    assert vector(2, 1003, 1008) == 8
    assert vector(2, 1003, 1003, 1004) == 1
    assert vector(2, 1000, 1000) == 1


def test_rows_are_a_view_where_one_stride_addresses_them():
    x = torch.randn(2, 3, 8)
    assert as_rows(x).data_ptr() == x.data_ptr()
    sliced = x[..., :5]
    assert as_rows(sliced).stride() == (8, 1)
    assert as_rows(sliced).data_ptr() == x.data_ptr()
    turned = as_rows(x.mT)
    assert turned.stride() == (3, 1)
    assert torch.equal(turned.view(2, 8, 3), x.mT)
    expanded = as_rows(torch.ones(1).expand(4, 6))
    assert expanded.stride(1) == 1


def test_a_cpu_stands_for_four_multiprocessors_of_an_a100():
    assert multiprocessors(torch.device("cpu")) == 4
    assert shared_bytes(torch.device("cpu")) == 163 << 10


def test_a_stride_of_64_bits_is_handed_whole():
    """Divided by 16 it may have 32, and in these the kernel's product would overflow."""
    assert alignment(128256, 2**31 - 16) == 16
    assert alignment(128256, 2**31) == alignment(128256, 32768 * 128256) == 1
