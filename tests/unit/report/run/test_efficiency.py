import msgspec
import pytest

from peakward.records.errors import PeakwardError
from peakward.report.run.efficiency import (
    compulsory_bytes,
    efficiency,
    measured_matmul_rate,
    model_flops,
    quotient,
)
from peakward.report.run.investigation import read

replace = msgspec.structs.replace


@pytest.fixture
def best(run_study):
    return read(run_study).best


def test_rates_and_shares(best):
    found = efficiency(best)
    flops = 3 * 1.39e13
    assert found.tokens_per_s == pytest.approx(2048 / 0.0975)
    assert found.flops_per_s == pytest.approx(flops / 0.0975)
    assert found.mfu == pytest.approx(flops / 0.0975 / 989e12)
    assert found.ceiling_share == pytest.approx(flops / 0.0975 / 785e12)
    assert found.floor_share == pytest.approx(best.prediction.floor_s / 0.0975)
    assert model_flops(best.prediction) == pytest.approx(flops)
    assert compulsory_bytes(best.prediction) == pytest.approx(10 * 3.407e9 * 2)


def test_an_mfu_above_100_percent_is_refused(best):
    wrong = replace(best, prediction=replace(best.prediction, peak_flops_per_s=400e12))
    with pytest.raises(PeakwardError, match=r"at most 100%, got 106\.92%") as caught:
        efficiency(wrong)
    assert caught.value.exit_code == 1


def test_no_mfu_without_a_datasheet_and_no_ceiling_share_from_one(best):
    unknown = replace(best, prediction=replace(best.prediction, peak_flops_per_s=None))
    assert efficiency(unknown).mfu is None
    stated = replace(best.prediction, source="datasheet")
    assert measured_matmul_rate(stated) is None
    assert efficiency(replace(best, prediction=stated)).ceiling_share is None


def test_nothing_is_computed_of_a_case_that_failed(best):
    failed = replace(best, measurement=replace(best.measurement, summary=None, status="oom"))
    found = efficiency(failed)
    assert {getattr(found, name) for name in found.__struct_fields__} == {None}


def test_without_a_prediction_there_are_still_tokens(best):
    found = efficiency(replace(best, prediction=None))
    assert found.tokens_per_s is not None
    assert found.flops_per_s is found.mfu is found.floor_share is None


def test_quotients_of_unknowns_are_unknown():
    assert quotient(1.0, 4.0) == 0.25
    assert quotient(None, 4.0) is quotient(1.0, None) is quotient(1.0, 0.0) is None
