"""Calibrations stored before there were rates."""

import msgspec
import pytest

from peakward.records.calibration import Calibration, MatmulRate
from peakward.records.codec import from_json
from peakward.records.environment import Environment
from peakward.records.study import Study
from stored_results import Result, index

CEILINGS = Calibration(
    environment=Environment(
        device_type="cpu",
        device_name="a CPU",
        device_memory_bytes=2**34,
        n_cores=2,
        python="3.11",
        system="Linux",
        peakward="0.1",
    ),
    started_at="2026-11-21T10:00:00+00:00",
    wall_s=2.0,
    matmul=(MatmulRate(compute_type="fp32", size=1024, flops_per_s=1e11),),
    copy_bytes_per_s=1e10,
    copy_size_bytes=2**28,
)


def test_ceilings_of_schema_2_decode_and_have_no_rates() -> None:
    record = msgspec.to_builtins(CEILINGS)
    del record["rates"]
    data = msgspec.json.encode({"schema_version": 2, "record": record})
    assert from_json(data, Calibration) == CEILINGS


def test_stored_rates_from_before_latencies_decode_and_do_not_tell_of_them() -> None:
    rates = from_json(index()["2026-11-21-h200-calibration"].read(), Calibration).rates
    assert rates is not None
    assert rates.tell_of("levels")
    assert not rates.tell_of("latency")


@pytest.mark.parametrize("result", index().of("run", device="h200-141"), ids=lambda each: each.name)
def test_stored_runs_decode_with_their_ceilings(result: Result) -> None:
    calibration = from_json(result.read(), Study).calibration
    assert calibration is not None
    assert calibration.matmul_flops_per_s("bf16") is not None
    assert calibration.rates is None
