"""Products with quantised weights on a device of round figures, by hand; and what an H100 took."""

import json

import pytest

from peakward.hardware.devices import device as catalogued
from peakward.prediction.time.device_model import device_model
from peakward.prediction.time.operator_time import cost
from peakward.prediction.time.quantised_products import SHARES
from peakward.prediction.time.setting import of_case
from peakward.prediction.time.step import step_time
from peakward.records.op_graph import Operator
from stored_results import index

from .round_device import TB, US, case, device, operator, tensor

SWEEP = "2026-11-22-h100-kernel-sweep-quantized_matmul"
SPEEDS = {
    8: "2026-11-22-h100-kernel-speed-quantized_matmul",
    4: "2026-11-23-h100-kernel-speed-quantized_matmul",
}
BEYOND_S = 6.7 * US
"""That a call took in both beside its kernel, by a bf16 product of one row there."""


def product(m, k, n, *, bits, dtype="bfloat16"):
    x, y = tensor(m, k, dtype=dtype), tensor(m, n, dtype=dtype)
    if bits == 8:
        kept = [tensor(n, k, dtype="int8"), tensor(1, n, dtype="bfloat16")]
    else:
        kept = [tensor(k // 128, n, 16, dtype="int32"), tensor(k // 128, n, dtype="bfloat16")]
    made = operator("mm", [x, *kept], [y], flops=2 * m * k * n)
    return Operator(**{
        **{name: getattr(made, name) for name in made.__struct_fields__},
        "name": f"peakward.int{bits}_matmul",
    })  # fmt: skip


def told(of, on=None):
    return cost(of, of_case(case(precision="bf16")), on or device())


@pytest.mark.parametrize("bits", [8, 4])
def test_a_weight_is_read_once_for_every_64_rows(bits):
    """8,192 channels are 64 programs, so that of 512 columns none has a share to give away."""
    k, n = 512, 8192
    weight = n * k * bits // 8 + n * 2 * (1 if bits == 8 else 4)
    for m, rows, times in ((64, 64, 1), (33, 64, 1), (20, 32, 1), (640, 64, 10)):
        found = told(product(m, k, n, bits=bits))
        moved = times * weight + 2 * m * (k + n)
        seconds = 3 * US + moved / (SHARES[bits][rows] * 10 * TB)
        assert found.device_s == pytest.approx(seconds)
        assert found.n_launches == 1


def test_what_columns_are_shared_for_is_added_up_in_a_second_launch():
    """Of 14,336 columns and 1,024 channels: 64 programs of 8 warps, four times over."""
    m, k, n = 1, 14_336, 1024
    found = told(product(m, k, n, bits=4))
    weight = n * k // 2 + n * k // 128 * 2
    sums_s = 2 * US + (4 * n * 4 + n * 2) / TB
    read_s = (weight + 2 * (k + n)) / (SHARES[4][8] * 10 * TB)
    assert found.device_s == pytest.approx(3 * US + read_s + sums_s)
    assert found.n_launches == 2


def test_of_fp32_nothing_is_known():
    assert told(product(1, 4096, 4096, bits=8, dtype="float32")).device_s is None


SWEPT = ((4, 32), (4, 64), (8, 64))
"""By bits and rows."""


@pytest.mark.parametrize(("bits", "m"), [(8, 1), (8, 16), (4, 1), (4, 4), (4, 16)])
def test_it_is_what_an_h100_took(bits, m):
    """Of int8 what the kernels took that it has again."""
    weight = {"weight": "int8" if bits == 8 else "int4, 128", "m": m, "k": 4096, "n": 14_336}
    (outcome,) = (each for each in outcomes(SPEEDS[bits]) if each["shape"] == weight)
    assert_takes(bits, m, outcome["arms"][0]["median_s"])


def outcomes(name):
    return json.loads(index()[name].read())["outcomes"]


@pytest.mark.parametrize(("bits", "m"), SWEPT)
def test_of_more_rows_too(bits, m):
    (outcome,) = (
        each
        for each in outcomes(SWEEP)
        if each["shape"]["m"] == m
        and (each["shape"]["k"], each["shape"]["n"]) == (4096, 14_336)
        and each["shape"]["weight"] in (f"int{bits}, 128", f"int{bits}, 4096")
    )
    (arm,) = (each for each in outcome["arms"] if each["name"] == "peakward")
    assert_takes(bits, m, arm["median_s"])


def assert_takes(bits, m, seconds):
    on = device_model(None, catalogued("h100-sxm-80"))
    copy = 3.0 * TB
    on = on._replace(
        products={kind: each._replace(bytes_per_s=copy) for kind, each in on.products.items()}
    )
    found = told(product(m, 4096, 14_336, bits=bits), on)
    assert found.device_s == pytest.approx(seconds - BEYOND_S, rel=0.1)


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
    name = f"peakward.int{4 if weights == 'int4:128' else 8}_matmul"
    assert few[weights].never_measured == (name,)
    assert few[weights].step_s.estimate < few["dense"].step_s.estimate
    assert many[weights].step_s.estimate > many["dense"].step_s.estimate
