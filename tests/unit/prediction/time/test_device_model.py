"""What is known of a device, and from where."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.prediction.time.device_model import (
    FULL,
    AttentionModel,
    TrafficCurve,
    device_model,
    fitted,
)
from peakward.prediction.time.products import KERNELS, ProductModel
from peakward.records.calibration import (
    AttentionRate,
    Calibration,
    LaunchCost,
    ProductRate,
    Rates,
    TrafficRate,
)
from peakward.records.device import Capability, Device, SourcedFigure
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Environment


def figure(value):
    return SourcedFigure(value=value, source="made up")


ROUND = Device(
    key="round",
    name="Round",
    driver_names=("Round",),
    memory_gb=figure(80),
    peak_flops_per_s={"bf16": figure(1000e12), "int8": figure(2000e12)},
    bytes_per_s=figure(4e12),
    n_sms=figure(100.0),
    compute_capability=Capability(value=(9, 0), source="by hand"),
)
TRUE = ProductModel(KERNELS["fp32"], 40e12, 6e-6, 100, 3e12)


def square(size, kind="square", compute_type="fp32"):
    return ProductRate(
        kind=kind,
        compute_type=compute_type,
        m=size,
        n=size,
        k=size,
        flops_per_s=2 * size**3 / TRUE.time_s(size, size, size),
    )


def attended(seq_len, flops_per_s):
    return AttentionRate(
        compute_type="bf16",
        pass_="forward",
        batch_size=1,
        n_heads=1,
        seq_len=seq_len,
        head_dim=64,
        flops_per_s=flops_per_s,
    )


RATES = Rates(
    products=(
        *(square(size) for size in (512, 1024, 2048, 4096)),
        square(1024, compute_type="bf16"),
        square(2048, kind="small k", compute_type="bf16"),
    ),
    traffic=tuple(
        TrafficRate(operation="add", size_bytes=size, bytes_per_s=rate)
        for size, rate in ((4096, 4e9), (2**28, 3e12))
    ),
    launches=(
        LaunchCost(side="host", operation="elementwise", call_s=4e-6),
        LaunchCost(side="host", operation="autograd", call_s=8e-6),
        LaunchCost(side="device", operation="elementwise", call_s=2e-6),
    ),
    attention=(attended(1024, 1e14), attended(4096, 2e14)),
)


def calibration(rates=RATES):
    return Calibration(
        environment=Environment(
            device_type="cuda",
            device_name="Round",
            device_memory_bytes=80 * 2**30,
            n_cores=1,
            python="3.12",
            system="Linux",
            peakward="0.1.0",
        ),
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=1.0,
        matmul=(),
        copy_bytes_per_s=3e12,
        copy_size_bytes=2**30,
        rates=rates,
    )


def test_a_calibrated_device_is_what_was_measured():
    found = device_model(calibration(), ROUND)
    assert (found.name, found.source, found.n_sms) == ("Round", "calibrated", 100)
    assert found.call_s == 8e-6
    assert found.traffic.launch_s == pytest.approx(3 * 4096 / 4e9)
    assert found.products["fp32"].flops_per_s == pytest.approx(40e12, rel=0.02)
    assert found.products["fp32"].bytes_per_s == 3e12


def test_a_type_of_which_too_little_was_measured_is_unknown():
    found = device_model(calibration(), ROUND)
    assert set(found.products) == {"fp32"}  # Of bf16 only one square.
    assert set(found.attention) == {("bf16", "forward")}
    one = msgspec.structs.replace(RATES, attention=RATES.attention[:1])
    assert device_model(calibration(one), ROUND).attention == {}


@pytest.mark.parametrize("given", [None, calibration(rates=None)])
def test_without_rates_it_is_the_datasheet(given):
    found = device_model(given, ROUND)
    assert found.source == "datasheet"
    assert set(found.products) == {"bf16"}
    assert found.products["bf16"].flops_per_s == pytest.approx(880e12)
    assert found.products["bf16"].bytes_per_s == pytest.approx(3.52e12)
    assert found.traffic.time_s(3.52e12) == pytest.approx(1 + 1.9e-6)
    assert set(found.attention) == {("bf16", "forward"), ("bf16", "backward")}
    # 1 / (0.54 · 10¹⁵) s a FLOP, and 2220 / 10¹⁵ over the length.
    taken_s = found.attention["bf16", "forward"].time_s(1e15, 2220)
    assert taken_s == pytest.approx(1 / 0.54 + 1)


@pytest.mark.parametrize(
    ("device", "named"),
    [
        (None, "one that the catalogue does not know"),
        (msgspec.structs.replace(ROUND, n_sms=None), "Round"),
    ],
)
def test_a_device_of_unknown_multiprocessors_is_refused(device, named):
    with pytest.raises(PeakwardError, match=f"multiprocessors is known.* got {named}"):
        device_model(calibration(), device)


def test_a_device_without_cuda_is_refused():
    with pytest.raises(PeakwardError, match="a compute capability"):
        device_model(calibration(), msgspec.structs.replace(ROUND, compute_capability=None))


@pytest.mark.parametrize("missing", ["launches", "traffic"])
def test_a_calibration_that_failed_to_measure_is_refused(missing):
    half = msgspec.structs.replace(RATES, **{missing: ()})
    with pytest.raises(PeakwardError, match="expected a calibration with launch costs"):
        device_model(calibration(half), ROUND)


def test_a_datasheet_knows_no_host_and_a_calibration_its_own():
    assert not device_model(None, ROUND).host_is_known
    assert device_model(calibration(), ROUND).host_is_known
    assert not device_model(calibration(), ROUND, host_is_known=False).host_is_known


def test_a_host_that_was_timed_is_known_whatever_the_device_s_rates_are():
    timed = Rates(
        launches=(LaunchCost(side="host", operation="autograd", call_s=3e-6), IN_BACKWARD)
    )
    for known in (None, calibration()):
        before = device_model(known, ROUND)
        after = before.issued_by(timed)
        assert (after.call_s, after.backward_call_s, after.host_is_known) == (3e-6, 12e-6, True)
        assert (after.source, after.products) == (before.source, before.products)


IN_BACKWARD = LaunchCost(side="host", operation="autograd in a backward pass", call_s=12e-6)


def test_a_host_of_which_no_call_was_timed_stays_what_it_was():
    known = device_model(calibration(), ROUND)
    assert known.issued_by(Rates(launches=(IN_BACKWARD,))) == known


def test_each_phase_is_issued_by_its_own_thread():
    phases = ("forward", "backward", "optimizer")
    apart = msgspec.structs.replace(RATES, launches=(*RATES.launches, IN_BACKWARD))
    known, old = (device_model(calibration(rates), ROUND) for rates in (apart, RATES))
    assert [known.host_call_s(phase) for phase in phases] == [8e-6, 12e-6, 8e-6]
    assert [old.host_call_s(phase) for phase in phases] == [8e-6] * 3
    # One thread's cost of the moment is not set beside the other's of a calibration.
    moment = Rates(launches=(LaunchCost(side="host", operation="autograd", call_s=3e-6),))
    assert known.issued_by(moment).host_call_s("backward") == 3e-6


# Seconds by bytes moved, through points by hand.


def traffic_rate(size_bytes, bytes_per_s, operation="add"):
    return TrafficRate(operation=operation, size_bytes=size_bytes, bytes_per_s=bytes_per_s)


CURVE = TrafficCurve.measured(
    [traffic_rate(1000, 1500.0), traffic_rate(100, 300.0), traffic_rate(100, 9.0, "copy")]
)
"""Additions that move 300 bytes in 1 s and 3000 in 2 s; the copy is another kernel's."""


@pytest.mark.parametrize(
    ("moved_bytes", "seconds"),
    [(0, 1.0), (300, 1.0), (1650, 1.5), (3000, 2.0), (6000, 4.0)],
)
def test_a_launch_then_straight_lines_then_the_bandwidth(moved_bytes, seconds):
    assert CURVE.time_s(moved_bytes) == pytest.approx(seconds)


def test_a_launch_is_the_smallest_call():
    assert CURVE.launch_s == 1.0


def test_the_datasheets_is_a_launch_and_the_bandwidth():
    stated = TrafficCurve.stated(1e9, 2e-6)
    assert stated.launch_s == stated.time_s(0) == 2e-6
    assert stated.time_s(5e8) == pytest.approx(0.5 + 2e-6)
    assert stated.time_s(3e9) == pytest.approx(3.0, rel=1e-5)


@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_more_bytes_never_take_less(a, b):
    stated = TrafficCurve.stated(4e12, 2e-6)
    assert stated.time_s(min(a, b)) <= stated.time_s(max(a, b))


def test_a_factor_is_on_what_is_moved_and_not_on_a_launch():
    curve = TrafficCurve((0, 10**12), (2e-6, 1 + 2e-6))
    assert curve.slowed_s(1.65, 0) == curve.launch_s
    full_bytes = (FULL - 1) * 2e-6 * 1e12
    for moved in (full_bytes, 10 * full_bytes):
        assert curve.slowed_s(1.65, moved) == pytest.approx(1.65 * curve.time_s(moved))
    grown = [curve.slowed_s(1.65, share * full_bytes) for share in (0, 0.25, 0.5, 0.75, 1)]
    assert grown == sorted(grown)


# The rate of fused attention, through two points by hand.


def attention_rate(seq_len, flops_per_s, compute_type="bf16", pass_="forward"):
    return AttentionRate(
        compute_type=compute_type,
        pass_=pass_,
        batch_size=4,
        n_heads=16,
        seq_len=seq_len,
        head_dim=64,
        flops_per_s=flops_per_s,
    )


TWO = [attention_rate(4000, 2e12), attention_rate(1000, 1e12)]
"""1 ps a FLOP at 1000, 0.5 at 4000: 1/3 at endless rows and 2/3 ns over the length."""


def test_it_goes_through_both_lengths_and_on():
    model = fitted(TWO, "bf16", "forward")
    assert model.time_s(6e12, 1000) == pytest.approx(6.0)
    assert model.time_s(6e12, 4000) == pytest.approx(3.0)
    assert model.time_s(6e12, 10**15) == pytest.approx(2.0)
    assert model.time_s(6e12, 500) == pytest.approx(10.0)


def test_lengths_between_do_not_bend_it():
    assert fitted([*TWO, attention_rate(2000, 1e9)], "bf16", "forward") == fitted(
        TWO, "bf16", "forward"
    )


@pytest.mark.parametrize(
    "rates",
    [
        [],
        [attention_rate(1000, 1e12)],
        [attention_rate(1000, 1e12), attention_rate(1000, 2e12)],
        [attention_rate(1000, 1e12), attention_rate(4000, 2e12, "fp16")],
        [attention_rate(1000, 1e12), attention_rate(4000, 2e12, pass_="backward")],
    ],
)
def test_one_length_of_a_type_and_pass_tells_nothing(rates):
    assert fitted(rates, "bf16", "forward") is None


def test_where_short_rows_are_no_slower_the_length_does_not_matter():
    assert fitted(
        [attention_rate(1000, 2e12), attention_rate(4000, 1e12)], "bf16", "forward"
    ) == AttentionModel(1e-12, 0.0)
