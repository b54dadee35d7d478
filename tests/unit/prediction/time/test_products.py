"""Tiles, waves, starts and bytes of matrix products, by hand."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.prediction.time.products import (
    FEW_ROWS,
    FEW_ROWS_BANDWIDTH,
    KERNELS,
    UNALIGNED_SLOWDOWNS,
    Kernel,
    ProductModel,
    fitted,
)
from peakward.records.calibration import ProductRate

from .measured_h200 import calibrated

PLAIN = Kernel(tiles=((128, 128),), edge=0, prologue=0, item_bytes=2)
"""Loses nothing but part tiles and part waves."""
US = 1e-6
TILE_S = 32.768 * US
"""2 · 128 · 128 · 1000 FLOPs at 10¹² FLOP/s, a multiprocessor's share."""


def plain(**changes):
    model = ProductModel(PLAIN, 132e12, start_s=0.0, n_sms=132, bytes_per_s=1e30)
    return model._replace(**changes)


def test_a_product_of_one_tile_takes_one_multiprocessors_time():
    assert plain().time_s(128, 128, 1000) == pytest.approx(TILE_S)
    assert plain().time_s(65, 1, 1000) == pytest.approx(TILE_S)


def test_of_few_rows_all_multiprocessors_share_a_tiles_sum():
    """10 tiles of 132 multiprocessors: each in three parts, since no part is shorter than 256."""
    whole, parts = plain().compute_s(65, 1280, 1000), plain().compute_s(64, 1280, 1000)
    assert whole == pytest.approx(TILE_S)
    assert parts == pytest.approx(TILE_S * 334 / 1000)


@pytest.mark.parametrize("m", [1, 8, 64])
@pytest.mark.parametrize(("n", "k"), [(7680, 2560), (2560, 2560), (20480, 2560), (2560, 10240)])
def test_products_of_a_decode_step_take_the_time_of_reading_the_weight(m, n, k):
    """On an H200; with what lies before and after the multiplication."""
    model = calibrated().products["bf16"]
    weight_s = 2 * n * k / (FEW_ROWS_BANDWIDTH * model.bytes_per_s)
    assert weight_s < model.time_s(m, n, k) < 1.1 * weight_s + model.start_s


@pytest.mark.parametrize(
    ("m", "n", "waves"),
    [
        (128 * 12, 128 * 11, 1),  # 132 tiles
        (128 * 12, 128 * 11 + 1, 2),  # one column more: 12 × 12 tiles
        (128 * 12 + 1, 128 * 11, 2),  # 13 × 11
        (129, 128 * 67, 2),  # 2 × 67
        (128 * 24, 128 * 11, 2),
        (128 * 24, 128 * 11 + 1, 3),  # 288
    ],
)
def test_a_part_tile_is_a_tile_and_a_part_wave_a_wave(m, n, waves):
    assert plain().time_s(m, n, 1000) == pytest.approx(waves * TILE_S)


def test_the_products_of_a_batch_share_waves():
    assert plain().time_s(128, 128, 1000, batch=132) == pytest.approx(TILE_S)
    assert plain().time_s(128, 128, 1000, batch=133) == pytest.approx(2 * TILE_S)


def test_the_tile_that_ends_first_is_taken_turned_or_not():
    # 132 tiles of 64 × 256 turned; as they are, 528.
    long = plain(kernel=PLAIN._replace(tiles=((64, 256),)))
    assert long.time_s(256 * 132, 64, 1000) == pytest.approx(TILE_S)
    assert long.time_s(64, 256 * 132, 1000) == pytest.approx(TILE_S)
    # 133 tiles of 128 × 128 need two waves; so many half tiles of half the time three, not four.
    halves = plain(kernel=PLAIN._replace(tiles=((128, 128), (64, 128))))
    assert halves.time_s(128 * 133, 128, 1000) == pytest.approx(1.5 * TILE_S)


def test_a_start_a_prologue_and_edges_come_on_top():
    assert plain(start_s=5 * US).time_s(128, 128, 1000) == pytest.approx(TILE_S + 5 * US)
    long = plain(kernel=PLAIN._replace(prologue=500))
    assert long.time_s(128, 128, 1000) == pytest.approx(1.5 * TILE_S)
    edged = plain(kernel=PLAIN._replace(edge=4))  # 1 + 4 · (1/128 + 1/128)
    assert edged.time_s(128, 128, 1000) == pytest.approx(1.0625 * TILE_S)


def test_an_endless_square_tends_to_the_rate():
    model = plain(kernel=PLAIN._replace(prologue=128))
    shares = [2 * n**3 / model.time_s(n, n, n) / model.flops_per_s for n in (512, 4096, 2**17)]
    # 16 tiles of 132; then 1024 in 8 waves of 132; then all but the prologue's 128 of 131,072.
    assert shares[0] == pytest.approx(16 / 132 * 512 / 640)
    assert shares[1] == pytest.approx(1024 / 1056 * 4096 / 4224)
    assert shares[2] == pytest.approx(1.0, rel=0.002)


def test_a_thin_product_takes_its_bytes():
    slow = plain(bytes_per_s=1e9)
    # [65, 1000] × [1000, 1000]: 65,000 + 10⁶ read, 65,000 written, of two bytes each.
    assert slow.time_s(65, 1000, 1000) == pytest.approx(2.26e-3)
    # Of one row 1000 + 10⁶ and 1000, at nine tenths of the bandwidth.
    assert slow.time_s(1, 1000, 1000) == pytest.approx(2.004e-3 / 0.9)


def test_nothing_to_multiply_is_a_start():
    assert plain(start_s=5 * US).time_s(128, 0, 128) == 5 * US


@pytest.mark.parametrize("kind", KERNELS)
def test_no_row_takes_no_tile(kind):
    """As of an expert that no token goes to."""
    model = ProductModel(KERNELS[kind], 500e12, 3 * US, 132, 4e12)
    assert model.compute_s(0, 4096, 14336) == 0


@pytest.mark.parametrize(
    ("kind", "lengths", "starts"),
    [
        ("bf16", (8, 50_257), 1),
        ("bf16", (8, 100_278), 4),
        ("bf16", (4,), 4),
        ("bf16", (50_257, 100_278), 1),
    ],
)
def test_rows_of_16_bits_are_slow_by_how_they_start(kind, lengths, starts):
    model = plain(kernel=KERNELS[kind])
    both = tuple(model.slowdown(*lengths, forward=each) for each in (True, False))
    assert both == UNALIGNED_SLOWDOWNS[starts]


@pytest.mark.parametrize(
    ("kind", "lengths"), [("bf16", (8, 50_256)), ("fp32", (3,)), ("fp8", (16,))]
)
def test_other_rows_are_not(kind, lengths):
    assert plain(kernel=KERNELS[kind]).slowdown(*lengths, forward=True) == 1.0


ALIGNED, ODD = (16, 16), (1, 2)
"""Least size, and step to the next that is as well aligned."""


@given(
    st.sampled_from(sorted(KERNELS)),
    st.sampled_from([ALIGNED, ODD]),
    st.tuples(*[st.integers(0, 500)] * 3),
    st.integers(1, 50),
)
def test_no_size_more_takes_less(kind, sizes, steps, batch):
    model = ProductModel(KERNELS[kind], 500e12, 3 * US, 132, 4e12)
    least, step = sizes
    m, n, k = (least + step * each for each in steps)
    # Fewer rows are split along k, and go faster where that makes one part more.
    m += FEW_ROWS
    time_s = model.time_s(m, n, k, batch)
    assert time_s >= 2 * m * n * k * batch / 500e12
    for more in ((m + step, n, k, batch), (m, n + step, k, batch), (m, n, k + step, batch)):
        assert model.time_s(*more) >= time_s
    assert model.time_s(m, n, k, batch + 1) >= time_s


def rate(model, size, kind="square"):
    flops = 2 * size**3
    return ProductRate(
        kind=kind,
        compute_type="bf16",
        m=size,
        n=size,
        k=size,
        flops_per_s=flops / model.time_s(size, size, size),
    )


def test_a_fit_finds_the_model_that_made_the_rates():
    true = ProductModel(KERNELS["bf16"], 900e12, 3.5 * US, 132, 4e12)
    rates = [rate(true, size) for size in (512, 1024, 2048, 4096, 8192)]
    found = fitted(KERNELS["bf16"], rates[::-1], n_sms=132, bytes_per_s=4e12)
    assert found.flops_per_s == pytest.approx(900e12, rel=0.005)
    assert found.start_s == pytest.approx(3.5 * US, rel=0.02)


def test_only_squares_are_fitted_and_one_slow_one_does_not_matter():
    """As the largest on a device at its power cap; what two rounds leave of it is a third."""
    true = ProductModel(KERNELS["bf16"], 900e12, 3.5 * US, 132, 4e12)
    rates = [rate(true, size) for size in (512, 1024, 2048, 4096, 8192)]
    capped = msgspec.structs.replace(rates[-1], flops_per_s=0.9 * rates[-1].flops_per_s)
    thin = msgspec.structs.replace(rates[2], kind="small m", flops_per_s=1e12)
    found = fitted(KERNELS["bf16"], [*rates[:-1], capped, thin], n_sms=132, bytes_per_s=4e12)
    assert found.flops_per_s == pytest.approx(900e12, rel=0.035)
