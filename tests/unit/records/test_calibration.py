"""Rates put together from their subjects."""

import msgspec
import pytest

from peakward.records.calibration import (
    SUBJECTS,
    Absence,
    Calibration,
    DiskRate,
    Launch,
    LaunchCost,
    LevelRate,
    MatmulRate,
    Rates,
)
from peakward.records.codec import from_json, to_json
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Environment
from peakward.records.study import Study
from stored_results import Result, index

DISK = DiskRate(source="disk", size_bytes=8, block_bytes=4, bytes_per_s=1e9)
LEVEL = LevelRate(level="L2", working_set_bytes=8, bytes_per_s=1e9)
ABSENT = (Absence(subject="link", reason="none"), Absence(subject="disk", reason="full"))


def test_a_subject_is_a_field() -> None:
    assert set(SUBJECTS) == set(Rates.__struct_fields__) - {"absent", "doubts"}


def test_a_sum_has_the_figures_of_both_in_their_order() -> None:
    one = Rates(disk=(DISK,), absent=ABSENT[:1], doubts=("a",))
    other = Rates(disk=(DISK,), levels=(LEVEL,), absent=ABSENT[1:], doubts=("b",))
    assert one + other == Rates(
        disk=(DISK, DISK), levels=(LEVEL,), absent=ABSENT, doubts=("a", "b")
    )


def test_rates_tell_of_what_they_have_and_of_what_they_could_not_have() -> None:
    rates = Rates(levels=(LEVEL,), absent=ABSENT[:1])
    assert [each for each in SUBJECTS if rates.tell_of(each)] == ["levels", "link"]


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


def test_a_file_gives_back_what_was_saved(tmp_path):
    place = tmp_path / "calibration.json"
    CEILINGS.save(place)
    assert Calibration.load(place) == CEILINGS
    with pytest.raises(
        PeakwardError, match=r"a calibration to read in .*nowhere\.json, got nothing"
    ):
        Calibration.load(tmp_path / "nowhere.json")


def test_a_call_in_a_backward_pass_is_a_figure_of_its_own_and_older_records_have_none() -> None:
    costs: dict[Launch, float] = {"autograd": 8e-6, "autograd in a backward pass": 12e-6}
    rates = Rates(
        launches=tuple(
            LaunchCost(side="host", operation=operation, call_s=call_s)
            for operation, call_s in costs.items()
        )
    )
    assert (rates.recorded_call_s, rates.backward_call_s) == (8e-6, 12e-6)
    known = msgspec.structs.replace(CEILINGS, rates=rates)
    assert from_json(to_json(known), Calibration) == known
    stored = from_json(index()["2026-11-21-h200-calibration"].read(), Calibration).rates
    assert stored is not None
    assert stored.recorded_call_s is not None
    assert stored.backward_call_s is None
