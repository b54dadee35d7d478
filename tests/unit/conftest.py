"""Studies and measurements made by hand."""

import itertools
import uuid
from collections.abc import Callable

import msgspec
import pytest

from peakward.models.presets import model
from peakward.records.case import ModelCase, Workload
from peakward.records.measurement import (
    Environment,
    Interval,
    Measurement,
    MemoryUse,
    Protocol,
    Run,
    Summary,
    Validity,
)
from peakward.records.study import Study

ENVIRONMENT = Environment(
    device_type="cpu",
    device_name="Example CPU",
    device_memory_bytes=16 * 2**30,
    n_cores=2,
    torch="2.13.0",
    python="3.11.7",
    system="Linux 6.1",
    peakward="0.1.0",
)
_serial = itertools.count()


def measurement(seq_len: int = 8, median_s: float | None = 1e-3, **fields: object) -> Measurement:
    """One case, told apart by its sequence length; no median: it did not end `ok`."""
    case = ModelCase(
        model=model("tiny"), workload=Workload(batch_size=1, seq_len=seq_len), device="cpu"
    )
    plain = Measurement(
        id=f"m{next(_serial)}",
        case=case,
        protocol=Protocol(),
        environment=ENVIRONMENT,
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=1.0,
        status="oom",
        reason="no room",
    )
    if median_s is not None:
        summary = Summary(
            median_s=Interval(estimate=median_s, low=median_s * 0.99, high=median_s * 1.01),
            mean_s=median_s,
            sd_s=0.0,
            min_s=median_s,
            n=50,
        )
        plain = msgspec.structs.replace(
            plain,
            status="ok",
            reason=None,
            runs=(Run(warmup_s=(), steps_s=(median_s,) * 50),),
            summary=summary,
            validity=Validity(verdict="stable"),
            memory=MemoryUse(peak_allocated_bytes=2**20),
        )
    return msgspec.structs.replace(plain, **fields)


def study(*measurements: Measurement, **fields: object) -> Study:
    """A bench study of these measurements."""
    plain = Study(
        id=uuid.uuid4().hex,
        name="bench",
        title="Bench",
        command="peakward bench",
        environment=ENVIRONMENT,
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=1.0,
        complete=True,
        measurements=measurements,
    )
    return msgspec.structs.replace(plain, **fields)


@pytest.fixture
def make_measurement() -> Callable[..., Measurement]:
    return measurement


@pytest.fixture
def make_study() -> Callable[..., Study]:
    return study
