"""Every message survives its line of JSON, as what it was."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.lab.measure import messages
from peakward.lab.measure.messages import (
    Event,
    Failed,
    MemoryRecorded,
    Profiled,
    RatesMeasured,
    Ready,
    Released,
    Reply,
    Request,
    Turn,
    TurnsTimed,
)
from peakward.records.calibration import Absence, Rates
from peakward.records.case import ModelCase, OperatorCase, Workload
from peakward.records.lever import Claim
from peakward.records.measurement import Protocol
from peakward.records.memory import HeldTensors, MemoryMarks


@pytest.fixture
def case(make_shape):
    return ModelCase(model=make_shape(), workload=Workload(batch_size=1, seq_len=8), device="cpu")


def carried(message, kind):
    line = msgspec.json.encode(message)
    assert b"\n" not in line
    return msgspec.json.decode(line, type=kind)


def test_requests(case):
    operator = OperatorCase(batch_size=1, n_heads=1, seq_len=8, head_dim=8, device="cpu")
    sent = [
        messages.MeasureRequest(case=case, protocol=Protocol()),
        messages.MeasureRequest(case=operator, protocol=Protocol(warmup_steps=0)),
        messages.TurnsRequest(cases=(case, case), protocol=Protocol()),
        messages.NumericsRequest(claims=(Claim(base=case, candidate=case, declared="reordered"),)),
        messages.CalibrateRequest(device_type="cuda"),
        messages.RatesRequest(device_type="cuda", subject="levels"),
        messages.FirstStepRequest(case=operator),
        messages.ProfileRequest(case=operator, path="/t.json.gz", n_steps=3, with_stack=False),
        messages.MemoryRequest(case=case, path="/m.pickle.gz"),
    ]
    assert [carried(each, Request) for each in sent] == sent


@given(st.text())
def test_a_reason_is_carried_whatever_it_holds(reason):
    sent = Failed(status="crashed", reason=reason)
    assert carried(sent, Reply) == sent


def test_replies():
    sent = [
        Ready(pid=7),
        Event(stage="timing", done=3),
        Released(clean=True, held_bytes=0),
        RatesMeasured(rates=Rates(absent=(Absence(subject="disk", reason="full"),))),
        TurnsTimed(turns=(Turn(median_s=1.0, peak_bytes=2),)),
        Profiled(path="/t.json.gz", n_steps=3, profiled_step_s=0.5),
        MemoryRecorded(
            path="/m.pickle.gz",
            marks=MemoryMarks(
                begin=1,
                end=4,
                phases=((1, "forward"),),
                modules=((2, "blocks.0"), (3, "")),
                held=(HeldTensors(purpose="parameters", at=4, addresses=(2**47,)),),
                cleared=(4, 6),
                peak_allocated_bytes=None,
            ),
        ),
    ]
    assert [carried(each, Reply) for each in sent] == sent
