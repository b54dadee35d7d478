"""The H200 of results/, and the compiled steps that were measured on it."""

from functools import cache

from peakward.hardware.devices import device
from peakward.prediction.time.device_model import device_model
from peakward.records import codec
from peakward.records.calibration import Calibration
from peakward.records.case import ModelCase
from peakward.records.study import Study
from stored_results import index

COMPILED = ("bench-compiled-256", "bench-compiled-512", "bench-compiled-1024", "study-compile")


@cache
def calibrated():
    stored = index()["2026-11-21-h200-calibration"].read()
    return device_model(codec.from_json(stored, Calibration), device("h200-141"))


def study(name):
    return codec.from_json(index()[f"2026-11-21-h200-{name}"].read(), Study)


@cache
def compiled_steps() -> dict[ModelCase, float]:
    """Median seconds of each compiled case whose operators are stated."""
    return {
        each.case: each.summary.median_s.estimate
        for name in COMPILED
        for each in study(name).measurements
        if isinstance(each.case, ModelCase)
        and each.case.configuration.compile == "default"
        and not each.case.workload.varying_seq_lens
    }
