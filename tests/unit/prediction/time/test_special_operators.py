"""The time of grouped and quantised products and of a loss with the output layer in it."""

import json

import msgspec
import pytest
import torch

from peakward.hardware.devices import device as catalogued
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.time.device_model import device_model
from peakward.prediction.time.operator_time import cost
from peakward.prediction.time.setting import of_case
from peakward.prediction.time.special_operators import (
    DIGITS_SHARES,
    DIGITS_START_S,
    MOST_SHARE,
    RAMP_S,
    RATED_SMS,
    RATES,
    STARTS_S,
    Groups,
    compute_s,
    groups,
)
from peakward.prediction.time.step import step_time
from peakward.records.op_graph import Operator
from stored_results import index

from .round_device import TB, US, case, device, operator, tensor

# Products of all groups in one kernel on a device of round figures, by hand.

SMALL_S = 2 * 64 * 128 * 512 / 1e12
LARGE_S = 2 * 128 * 256 * 512 / 1e12
"""Of one tile over k of 512 at 1 TFLOP/s a multiprocessor, of which there are 100."""


def grouped(a, b, made, n_groups, flops=1):
    ends = tensor(n_groups, dtype="int32")
    a, b, made = (tensor(*each, dtype="bfloat16") for each in (a, b, made))
    return operator("_grouped_mm", [a, b, ends], [made], flops=flops)


def grouped_seconds(each, capability=(9, 0)):
    return compute_s(each, device().products["bf16"], capability)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (((800, 64), (8, 64, 32), (800, 32)), Groups(8, 100, 32, 64)),
        (((801, 64), (8, 64, 32), (801, 32)), Groups(8, 101, 32, 64)),
        (((3, 64), (8, 64, 32), (3, 32)), Groups(3, 1, 32, 64)),
        (((64, 800), (800, 32), (8, 64, 32)), Groups(8, 64, 32, 100)),
        (((8, 32, 64), (64, 800), (32, 800)), Groups(8, 32, 100, 64)),
        (((8, 100, 64), (8, 64, 32), (8, 100, 32)), Groups(8, 100, 32, 64)),
    ],
)
def test_groups_are_cut_evenly_from_what_has_no_dimension_of_them(shapes, expected):
    assert groups(grouped(*shapes, n_groups=8)) == expected


def test_tiles_of_all_groups_fill_waves_together():
    assert grouped_seconds(Groups(5, 1280, 512, 512)) == pytest.approx(LARGE_S)  # 5 × 10 × 2 tiles
    assert grouped_seconds(Groups(5, 1280, 513, 512)) == pytest.approx(2 * LARGE_S)


def test_tiles_run_in_pairs_along_the_rows():
    """Of 129 rows two tiles, of 257 four."""
    assert grouped_seconds(Groups(25, 129, 512, 512)) == pytest.approx(LARGE_S)
    assert grouped_seconds(Groups(25, 257, 512, 512)) == pytest.approx(2 * LARGE_S)


def test_few_rows_or_columns_have_small_tiles_and_on_blackwell_all():
    assert grouped_seconds(Groups(25, 128, 256, 512)) == pytest.approx(SMALL_S)
    assert grouped_seconds(Groups(5, 1280, 128, 512)) == pytest.approx(SMALL_S)
    assert grouped_seconds(Groups(5, 640, 256, 512), (10, 0)) == pytest.approx(SMALL_S)


def test_a_call_is_two_launches_and_the_longer_of_tiles_and_bytes():
    def found(rows):
        made = grouped((rows, 512), (8, 512, 512), (rows, 512), 8)
        return cost(made, of_case(case()), device()), made

    many, _ = found(8 * 2560)  # 8 × 20 × 2 tiles: four waves.
    assert many.device_s == pytest.approx(4 * LARGE_S + (2 + 3) * US)
    assert (many.n_launches, many.bound) == (2.0, "compute")
    thin = grouped((8, 512), (8, 512, 51_200), (8, 51_200), 8)
    thin_cost = cost(thin, of_case(case()), device())
    moved_s = (thin.bytes_read + thin.bytes_written) / (10 * TB)
    assert thin_cost.device_s == pytest.approx(max(moved_s, 1.3 * 64 * SMALL_S) + 5 * US, rel=0.3)


@pytest.mark.parametrize(
    ("shapes", "tiles_s"),
    [
        (((50 * 256, 512), (50, 512, 512), (50 * 256, 512)), 1.3 * 2 * LARGE_S),
        (((50 * 257, 512), (50, 512, 512), (50 * 257, 512)), 4 * LARGE_S),
        (((512, 25 * 256), (25 * 256, 512), (25, 512, 512)), 1.7 * 2 * LARGE_S / 2),
        (((512, 25 * 512), (25 * 512, 512), (25, 512, 512)), 2 * LARGE_S),
    ],
)
def test_short_groups_take_longer_than_their_tiles(shapes, tiles_s):
    found = cost(grouped(*shapes, shapes[1][0]), of_case(case()), device())
    assert found.device_s == pytest.approx(tiles_s + 5 * US)


def test_what_has_no_kernel_or_no_known_rate_has_no_time():
    made = grouped((800, 64), (8, 64, 32), (800, 32), 8)
    single = operator("_grouped_mm", [tensor(800, 64), tensor(8, 64, 32)], made.outputs, flops=1)
    for each, changes in (
        (made, {"products": {}}),
        (made, {"compute_capability": (8, 0)}),
        (single, {}),
    ):
        assert cost(each, of_case(case()), device(**changes)).device_s is None


# Products with quantised weights on a device of round figures, by hand; and what GPUs took.

SPEEDS = "2026-11-23-h100-kernel-speed-quantized_matmul-3"
STUDY = "2026-11-29-h200-study-quantization"
DIGITS = "2026-11-29-h200-kernel-trials-int8-digits"


def product(m, k, n, *, bits, group=128, dtype="bfloat16"):
    x, y = tensor(m, k, dtype=dtype), tensor(m, n, dtype=dtype)
    if bits == 8:
        kept = [tensor(n, k, dtype="int8"), tensor(1, n, dtype="bfloat16")]
    else:
        kept = [tensor(k // 128, n, 16, dtype="int32"), tensor(k // group, n, dtype="bfloat16")]
    made = operator("mm", [x, *kept], [y], flops=2 * m * k * n)
    return Operator(**{
        **{name: getattr(made, name) for name in made.__struct_fields__},
        "name": f"peakward.int{bits}_matmul",
    })  # fmt: skip


def told(of, on=None):
    return cost(of, of_case(case(precision="bf16")), on or device())


def widening_s(moved, rows):
    """Of int4, on 100 multiprocessors."""
    read_s = moved / (RATES[4][rows] * 100 / RATED_SMS)
    return STARTS_S[4][rows] + read_s + min(read_s, RAMP_S)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_weight_is_read_once_for_every_64_rows(bits):
    """8,192 channels are programs enough that none of 512 columns has a share to give away."""
    k, n = 512, 8192
    weight = n * k * bits // 8 + n * 2 * (1 if bits == 8 else 4)
    for m, rows, times in ((64, 64, 1), (33, 64, 1), (20, 32, 1), (640, 64, 10)):
        found = told(product(m, k, n, bits=bits))
        moved = times * weight + 2 * m * (k + n)
        seconds = 3 * US + DIGITS_START_S[rows] + moved / (DIGITS_SHARES[rows] * 10 * TB)
        seconds = widening_s(moved, rows) if bits == 4 else seconds
        assert found.device_s == pytest.approx(seconds)
        assert found.n_launches == (2 if bits == 8 else 1)


def test_what_columns_are_shared_for_is_added_up_in_a_second_launch():
    """Of 14,336 columns and 1,024 channels: 64 programs of 8 warps, four times over."""
    m, k, n = 1, 14_336, 1024
    found = told(product(m, k, n, bits=4))
    weight = n * k // 2 + n * k // 128 * 2
    sums_s = 2 * US + (4 * n * 4 + n * 2) / TB
    assert found.device_s == pytest.approx(widening_s(weight + 2 * (k + n), 8) + sums_s)
    assert found.n_launches == 2


def test_of_fp32_nothing_is_known():
    assert told(product(1, 4096, 4096, bits=8, dtype="float32")).device_s is None


@pytest.mark.parametrize(("bits", "m"), [(8, 1), (4, 1), (4, 4), (4, 16), (4, 64)])
def test_a_weight_that_is_widened_takes_what_an_h200_took(bits, m):
    """Of the study's 28,672 × 8,192."""
    case = {"piece": f"int{bits}", "sizes": [m, 8192, 28_672]}
    (took,) = (
        each["summary"]["median_s"]["estimate"]
        for each in json.loads(index()[STUDY].read())["record"]["measurements"]
        if case.items() <= each["case"].items()
    )
    found = told(product(m, 8192, 28_672, bits=bits), copying("h200-141", 4.2 * TB))
    assert found.device_s == pytest.approx(took, rel=0.03)


@pytest.mark.parametrize("bits", [8, 4])
def test_calls_on_an_h100_that_no_figure_was_fitted_to_took_it_too(bits):
    """By one row of large weights: of small ones what a call takes beside its kernel is a large part."""
    on, ratios = copying("h100-sxm-80", 3.0 * TB), []
    for each in outcomes(SPEEDS):
        shape = each["shape"]
        n, k = shape["n"], shape["k"]
        if shape["weight"] == ("int8" if bits == 8 else "int4, 128") and shape["m"] == 1:
            (ours,) = [arm for arm in each["arms"] if arm["name"] == "peakward"]
            if n * k * bits / 8 >= 29e6:
                ratios.append(ours["median_s"] / told(product(1, k, n, bits=bits), on).device_s)
    assert len(ratios) >= 4
    assert 0.93 < min(ratios) <= max(ratios) < 1.09


def test_no_weight_is_read_faster_than_memory_gives_it():
    """A slow memory beside many multiprocessors."""
    weight = 8192 * 28_672 // 2 * (1 + 4 / 128)
    found = told(product(1, 8192, 28_672, bits=4), copying("h200-141", 1.0 * TB))
    assert found.device_s > weight / (MOST_SHARE * TB)


@pytest.mark.parametrize("m", [1, 16])
def test_groups_of_32_take_more_as_an_h100_had_it(m):
    """By the bytes of four times as many scales: with 16 rows it took 1.16 times as long."""
    took, foretold = [], []
    for group in (32, 128):
        weight = {"weight": f"int4, {group}", "m": m, "k": 4096, "n": 14_336}
        (outcome,) = (each for each in outcomes(SPEEDS) if each["shape"] == weight)
        took.append(outcome["arms"][0]["median_s"])
        on = device_model(None, catalogued("h100-sxm-80"))
        foretold.append(told(product(m, 4096, 14_336, bits=4, group=group), on).device_s)
    assert foretold[0] / foretold[1] == pytest.approx(took[0] / took[1], rel=0.1)
    assert foretold[0] > 1.04 * foretold[1]


def outcomes(name):
    return json.loads(index()[name].read())["outcomes"]


def copying(name, bytes_per_s):
    on = device_model(None, catalogued(name))
    products = {kind: each._replace(bytes_per_s=bytes_per_s) for kind, each in on.products.items()}
    return on._replace(products=products)


def test_rows_of_digits_are_what_an_h200_took():
    """As far as settings were timed that the rule takes."""
    kernel = pytest.importorskip("peakward.kernels.ops.quantized_matmul.triton")
    on, n_timed = copying("h200-141", 4.2 * TB), 0
    for each in json.loads(index()[DIGITS].read())["times"]:
        m, n, k = each["m"], each["n"], each["k"]
        rule = kernel.byte_settings_for(
            m=m,
            n=n,
            n_tiles=-(-k // 128),
            group=128,
            dtype=torch.bfloat16,
            n_multiprocessors=132,
        )
        (arm,) = [name for name, cut in each["cuts"].items() if cut == list(rule)] or [None]
        if arm is not None:
            n_timed += 1
            found = told(product(m, k, n, bits=8), on)
            assert found.device_s == pytest.approx(each["cold_us"][arm] * US, rel=0.1)
    assert n_timed == 17


@pytest.mark.parametrize("weights", ["int8", "int4:128"])
def test_a_step_with_them_says_so_and_is_no_faster_at_many_rows(weights):
    few, many = (
        {
            each: step_time(
                case(
                    "small",
                    batch_size=1,
                    seq_len=2048,
                    pass_=pass_,
                    precision="bf16",
                    cuda_graphs=True,
                    weights=each,
                ),
                device_model(None, catalogued("h100-sxm-80")),
            )
            for each in ("dense", weights)
        }
        for pass_ in ("decode", "prefill")
    )
    assert few[weights].never_measured == ()
    assert few[weights].step_s.estimate < few["dense"].step_s.estimate
    assert many[weights].step_s.estimate > many["dense"].step_s.estimate


# The losses with the output layer in them on a device of round figures, by hand.

TOKENS, WIDTH, VOCAB = 4 * 128, 768, 10_000


def found(loss, phase, **settings):
    """The loss's own operator in a step of `small`, and its time."""
    made = case("small", loss=loss, precision="bf16", **settings)
    (operator,) = (
        each
        for each in op_graph(made).operators
        if "linear_cross_entropy" in each.name and each.phase == phase
    )
    return operator, cost(operator, of_case(made), device())


def waves_s(m, n, k):
    tiles = -(-m // 128) * -(-n // 128)
    return -(-tiles // 100) * 2 * 128 * 128 * k / 1e12


def test_without_logits_it_is_one_product():
    operator, told = found("recomputed", "forward")
    assert operator.flops == 2 * TOKENS * WIDTH * VOCAB
    assert told.device_s == pytest.approx(3 * US + waves_s(TOKENS, VOCAB, WIDTH))
    assert (told.n_launches, told.bound) == (3.0, "compute")


def test_all_logits_at_once_are_passed_over_once_and_multiplied_again_backward():
    """Of hidden and its gradient a pass, each of which is read and written."""
    operator, told = found("chunked", "forward")
    assert operator.flops == 4 * TOKENS * WIDTH * VOCAB
    sizes = ((TOKENS, VOCAB, WIDTH), (TOKENS, WIDTH, VOCAB))
    over_logits_s = 2 * TOKENS * VOCAB * 2 / 1e12 + 2 * US
    expected = 6 * US + sum(waves_s(*each) for each in sizes) + over_logits_s
    assert told.device_s == pytest.approx(expected)
    operator, told = found("chunked", "backward")
    assert operator.flops == 2 * TOKENS * WIDTH * VOCAB
    scaled_s = 4 * TOKENS * WIDTH * 2 / 1e12 + 2 * US
    assert told.device_s == pytest.approx(3 * US + waves_s(VOCAB, WIDTH, TOKENS) + scaled_s)


def test_a_chunk_is_multiplied_three_times_and_passed_over_once():
    """Of 64 times the tokens two chunks, the second of which is added to what is there."""
    operator, told = found("chunked", "forward", batch_size=128)
    assert operator.flops == 6 * 16_384 * WIDTH * VOCAB
    sizes = ((16_384, VOCAB, WIDTH), (16_384, WIDTH, VOCAB), (VOCAB, WIDTH, 16_384))
    passes_s = 2 * (16_384 * VOCAB * 2 + VOCAB * WIDTH * 4) / 1e12 + 2 * US
    expected = 18 * US + sum(waves_s(*each) for each in sizes) + passes_s
    assert told.device_s == pytest.approx(expected)


def test_more_chunks_cost_a_pass_over_the_sums_each():
    """Of 64 times the tokens 328 MB of logits, more than 256 MiB hold."""
    one, told = found("recomputed", "backward", batch_size=128)
    sizes = (
        (16_384, VOCAB, WIDTH),
        (16_384, WIDTH, VOCAB),
        (VOCAB, WIDTH, 16_384),
    )
    again_s = 2 * 16_384 * WIDTH * 4 / 1e12 + 2 * US
    assert one.flops == 6 * 16_384 * WIDTH * VOCAB
    assert told.device_s == pytest.approx(18 * US + sum(waves_s(*each) for each in sizes) + again_s)


def test_a_type_that_nobody_measured_has_no_time():
    operator, _ = found("chunked", "forward")
    made = case("small", loss="chunked", precision="bf16")
    assert cost(operator, of_case(made), device(products={})).device_s is None


def test_the_recomputed_ones_own_kernels_have_no_tf32():
    both = {"fp32": device().products["fp32"]}
    for loss, kind, knows in (("recomputed", "recomputed", True), ("chunked", "whole", False)):
        made = case("small", loss=loss, precision="tf32")
        name = f"peakward.linear_cross_entropy_{kind}"
        (operator,) = (each for each in op_graph(made).operators if each.name == name)
        told = cost(msgspec.structs.replace(operator), of_case(made), device(products=both))
        assert (told.device_s is not None) == knows
