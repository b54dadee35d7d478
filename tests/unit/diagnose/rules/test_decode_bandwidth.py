"""Decoding at the rate of memory."""

import msgspec
import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import SHAPE, abstains, case, foretold, given, judge, measurement, profile

BIG = msgspec.structs.replace(
    SHAPE, n_layers=32, d_model=4096, d_ff=11008, n_heads=32, n_kv_heads=32, head_dim=128
)
DECODE = case(
    shape=BIG,
    workload={"batch_size": 1, "pass_": "decode"},
    precision="bf16",
    attention="sdpa",
    cuda_graphs=True,
)


def taking(times_the_floor, of=DECODE):
    told = foretold(of)
    step_s = told.forecast.floor_s * times_the_floor
    return foretold(of, profile=profile(), measurement=measurement(of, step_s))


@pytest.mark.parametrize("times", [1.1, 1.9])
def test_near_the_floor(times):
    found = judge("GEN002", taking(times))
    assert isinstance(found, Symptom)
    assert found.evidence[0].value / found.evidence[1].value == pytest.approx(times)


def test_weights_of_fewer_bits_are_what_would_help():
    found = judge("GEN002", taking(1.1))
    assert found.levers[:2] == ("int4-weights", "int8-weights")


def test_silent_far_from_it_and_of_other_passes():
    assert judge("GEN002", taking(10)) is None
    assert judge("GEN002", taking(1.1, case())) is None


def test_of_compiled_steps_too_whose_time_is_not_foretold():
    config = msgspec.structs.replace(DECODE.configuration, compile="default")
    compiled = msgspec.structs.replace(DECODE, configuration=config)
    assert foretold(compiled).forecast.time is None
    assert isinstance(judge("GEN002", taking(1.7, compiled)), Symptom)


def test_silent_where_arithmetic_takes_longer_than_reading():
    of = case(
        shape=BIG,
        workload={"batch_size": 1024, "seq_len": 16, "pass_": "decode"},
        precision="bf16",
        attention="sdpa",
    )
    assert judge("GEN002", taking(1.1, of)) is None


def test_without_a_measurement_or_a_device():
    assert abstains("GEN002", foretold(DECODE))
    assert judge("GEN002", given()).missing == ("a case", "a measurement")
    assert judge("GEN002", given(measurement=measurement(DECODE))).missing == ("a case",)
    assert abstains("GEN002", given(site=None, case=DECODE, measurement=measurement(DECODE)))
