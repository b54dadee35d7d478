"""The floor: which ceiling it stands on, which bound it names, and that nothing measured is below."""

from typing import Any

import pytest

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.floor import (
    Ceilings,
    ceilings,
    compute_type,
    floor,
    peak_flops_per_s,
    roof,
)
from peakward.prediction.flops import phase_flops
from peakward.prediction.traffic import compulsory_bytes
from peakward.records.calibration import Calibration, MatmulRate
from peakward.records.case import Configuration, DeviceType, ModelCase, Precision, Workload
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Environment

ENVIRONMENT = Environment(
    device_type="cuda",
    device_name="NVIDIA H200",
    device_memory_bytes=143_771 * 2**20,
    n_cores=16,
    python="3.11",
    system="Linux",
    peakward="0.1.0",
)
H200 = {"bf16": 785e12, "fp16": 742e12, "tf32": 361e12, "fp32": 50.9e12, "fp8": 1340e12}
"""FLOP/s of an 8192-cubed product, and below bytes/s of a copy, measured on one H200."""


def calibration(rates: dict[str, float] = H200) -> Calibration:
    return Calibration(
        environment=ENVIRONMENT,
        started_at="2026-11-21T00:00:00Z",
        wall_s=1.0,
        matmul=tuple(
            MatmulRate(compute_type=kind, size=8192, flops_per_s=rate)
            for kind, rate in rates.items()
        ),
        copy_bytes_per_s=4264e9,
        copy_size_bytes=2**32,
    )


def case(
    name: str = "small", precision: Precision = "bf16", on: DeviceType = "cuda", **workload: Any
) -> ModelCase:
    return ModelCase(
        model=model(name),
        workload=Workload(**{"batch_size": 4, "seq_len": 512, **workload}),
        configuration=Configuration(precision=precision),
        device=on,
    )


def test_a_calibration_is_preferred_to_the_datasheet() -> None:
    predicted = floor(case(), calibration=calibration(), device=device("h200-141"))
    assert predicted.source == "calibrated"
    assert (predicted.matmul_flops_per_s, predicted.bytes_per_s) == (785e12, 4264e9)
    assert predicted.peak_flops_per_s == 989e12
    assert predicted.device == "NVIDIA H200 SXM 141 GB"


def test_without_a_calibration_the_datasheet_serves() -> None:
    predicted = floor(case(), calibration=None, device=device("h200-141"))
    assert predicted.source == "datasheet"
    assert (predicted.matmul_flops_per_s, predicted.bytes_per_s) == (989e12, 4800e9)


def test_without_a_datasheet_there_is_no_peak() -> None:
    predicted = floor(case(), calibration=calibration(), device=None)
    assert predicted.peak_flops_per_s is None
    assert predicted.floor_s is not None
    assert predicted.device == "NVIDIA H200"


def test_a_type_that_calibration_missed_takes_both_ceilings_from_the_datasheet() -> None:
    predicted = floor(
        case(precision="fp8"), calibration=calibration({"bf16": 1e12}), device=device("h200-141")
    )
    assert predicted.source == "datasheet"
    assert (predicted.matmul_flops_per_s, predicted.bytes_per_s) == (1979e12, 4800e9)


@pytest.mark.parametrize(
    ("measured", "key", "source", "bandwidth"),
    [
        (calibration({"fp32": 1e12}), None, "calibrated", 4264e9),
        (calibration({"fp32": 1e12}), "v100-sxm2-16", "calibrated", 4264e9),
        (None, "v100-sxm2-16", "datasheet", 900e9),
    ],
)
def test_a_rate_that_nobody_knows_is_never_guessed(
    measured: Calibration | None, key: str | None, source: str, bandwidth: float
) -> None:
    predicted = floor(case(), calibration=measured, device=device(key) if key else None)
    assert (predicted.source, predicted.bytes_per_s) == (source, bandwidth)
    assert predicted.matmul_flops_per_s is None
    assert predicted.peak_flops_per_s is None
    assert predicted.floor_s is None
    forward, backward, optimizer = predicted.phases
    for phase in (forward, backward):
        assert (phase.compute_s, phase.floor_s, phase.bound) == (None, None, None)
        assert phase.memory_s == phase.bytes / bandwidth
    # It has no products, so its floor needs no rate.
    assert optimizer.floor_s == optimizer.memory_s


def test_with_nothing_to_stand_on_it_says_what_to_run() -> None:
    with pytest.raises(PeakwardError, match="got neither: run `peakward devices calibrate`"):
        floor(case(), calibration=None, device=None)


def test_phases_hold_their_arithmetic_and_traffic_and_add_up() -> None:
    at = case("2.7B", accumulate=2)
    predicted = floor(at, calibration=calibration(), device=None)
    assert {phase.phase: phase.flops for phase in predicted.phases} == phase_flops(at)
    assert {phase.phase: phase.bytes for phase in predicted.phases} == compulsory_bytes(at)
    for phase in predicted.phases:
        assert phase.compute_s == phase.flops / 785e12
        assert phase.memory_s == phase.bytes / 4264e9
        assert phase.floor_s == max(phase.compute_s, phase.memory_s)
    assert predicted.floor_s == sum(phase.floor_s or 0 for phase in predicted.phases)


def test_the_bound_follows_the_work() -> None:
    small = floor(case(batch_size=1, seq_len=16), calibration=calibration(), device=None)
    large = floor(case(batch_size=64, seq_len=1024), calibration=calibration(), device=None)
    assert [phase.bound for phase in small.phases] == ["memory", "memory", "memory"]
    assert [phase.bound for phase in large.phases] == ["compute", "compute", "memory"]


@pytest.mark.parametrize(
    ("precision", "on", "kind"),
    [
        ("fp32", "cuda", "fp32"),
        ("tf32", "cuda", "tf32"),
        ("bf16-mixed", "cuda", "bf16"),
        ("bf16", "cuda", "bf16"),
        ("fp16-mixed", "cuda", "fp16"),
        ("fp8", "cuda", "fp8"),
        ("fp32", "cpu", "fp32"),
        ("tf32", "cpu", "fp32"),
        ("bf16-mixed", "cpu", "bf16"),
    ],
)
def test_the_type_that_products_multiply_in(
    precision: Precision, on: DeviceType, kind: str
) -> None:
    assert compute_type(case(precision=precision, on=on)) == kind


@pytest.mark.parametrize(
    ("name", "batch_size", "seq_len", "pass_", "precision", "tokens_per_s"),
    [
        # Measured on the H200 whose ceilings these are, Hugging Face Llama of the same shapes.
        ("small", 4, 512, "forward", "fp32", 115e3),
        ("small", 4, 512, "train_step", "fp32", 40.1e3),
        ("small", 4, 512, "forward", "bf16-mixed", 736e3),
        ("small", 4, 512, "train_step", "bf16-mixed", 164e3),
        ("xl", 4, 512, "forward", "fp32", 8.98e3),
        ("xl", 4, 512, "train_step", "bf16-mixed", 25.9e3),
        ("2.7B", 4, 512, "train_step", "fp32", 2.04e3),
        ("2.7B", 4, 512, "forward", "bf16", 79.0e3),
        ("2.7B", 4, 512, "train_step", "bf16", 21.0e3),
        ("2.7B", 8, 1024, "train_step", "bf16", 23.1e3),
    ],
)
def test_no_measured_step_lies_under_its_floor(
    name: str, batch_size: int, seq_len: int, pass_: str, precision: Precision, tokens_per_s: float
) -> None:
    at = case(name, precision, batch_size=batch_size, seq_len=seq_len, pass_=pass_)
    predicted = floor(at, calibration=calibration(), device=None)
    measured_s = batch_size * seq_len / tokens_per_s
    assert predicted.floor_s is not None
    # The floor is of use, too: within a factor of five of what was reached.
    assert measured_s / 5 < predicted.floor_s < measured_s


# The longer of two times, and what is not known; the choice of a source is in test_floor.

KNOWN = Ceilings("drawn", 100.0, 10.0, "datasheet")
UNKNOWN = KNOWN._replace(matmul_flops_per_s=None)


@pytest.mark.parametrize(
    ("flops", "bytes_", "times"),
    [
        (300.0, 20.0, (3.0, 2.0, 3.0, "compute")),
        (300.0, 40.0, (3.0, 4.0, 4.0, "memory")),
        (300.0, 30.0, (3.0, 3.0, 3.0, "memory")),
        (0.0, 30.0, (0.0, 3.0, 3.0, "memory")),
    ],
)
def test_the_longer_time_binds_and_a_tie_is_memory(
    flops: float, bytes_: float, times: tuple[float, float, float, str]
) -> None:
    assert roof(flops, bytes_, KNOWN) == times


def test_arithmetic_at_an_unknown_rate_has_no_time() -> None:
    assert roof(300.0, 20.0, UNKNOWN) == (None, 2.0, None, None)
    assert roof(0.0, 20.0, UNKNOWN) == (0.0, 2.0, 2.0, "memory")


def test_a_datasheet_gives_its_rate_and_bandwidth_or_no_rate() -> None:
    h200 = device("h200-141")
    assert ceilings("bf16", None, h200) == (h200.name, 989e12, 4800e9, "datasheet")
    assert ceilings("fp4", None, h200).matmul_flops_per_s is None
    assert peak_flops_per_s(h200, "bf16") == 989e12
    assert peak_flops_per_s(None, "bf16") is None


def test_nothing_to_stand_on_is_refused() -> None:
    with pytest.raises(PeakwardError, match="got neither"):
        ceilings("bf16", None, None)
