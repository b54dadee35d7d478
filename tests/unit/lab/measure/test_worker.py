"""The worker's loop, in this process: what it answers, and when it stops."""

import io
from contextlib import contextmanager
from queue import SimpleQueue

import msgspec
import pytest

from peakward.lab.measure import worker
from peakward.lab.measure.messages import (
    Event,
    Failed,
    FirstStepProfiled,
    FirstStepRequest,
    Measured,
    MeasureRequest,
    NumericsChecked,
    NumericsRequest,
    Profiled,
    ProfileRequest,
    RatesMeasured,
    RatesRequest,
    Ready,
    Released,
    Reply,
    TurnsRequest,
    TurnsTimed,
)
from peakward.records.case import ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.protocol import Protocol

PROTOCOL = Protocol(warmup_steps=0, min_steps=1, max_steps=1, phases=False)


@pytest.fixture
def case(make_shape):
    return ModelCase(model=make_shape(), workload=Workload(batch_size=1, seq_len=8), device="cpu")


def failing(error):
    @contextmanager
    def prepare(case):
        raise error
        yield

    return prepare


def served(requests, prepare):
    """The replies to these requests, up to a failure."""
    incoming, replies = SimpleQueue(), io.BytesIO()
    for each in requests:
        incoming.put(each)
    worker.serve(incoming, replies, prepare)
    return [msgspec.json.decode(line, type=Reply) for line in replies.getvalue().splitlines()]


END = RuntimeError("end of the test")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (PeakwardError("expected one kind of CUDA graphs"), "invalid", "expected one kind"),
        (MemoryError(), "oom", "MemoryError"),
        (ValueError("bad\nshape"), "crashed", "ValueError: bad"),
    ],
)
def test_a_failure_is_answered_and_is_the_last_thing_served(case, error, status, reason):
    request = MeasureRequest(case=case, protocol=PROTOCOL)
    replies = served([request, request], failing(error))
    assert [type(each) for each in replies] == [Ready, Event, Failed]
    assert replies[-1].status == status
    assert replies[-1].reason.startswith(reason)


def test_a_missing_device_is_invalid(case):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    request = MeasureRequest(case=msgspec.structs.replace(case, device="cuda"), protocol=PROTOCOL)
    failed = served([request], worker.prepare_case)[-1]
    assert failed.status == "invalid"
    assert "expected a GPU that torch can use" in failed.reason


def test_real_requests_one_after_another(case, tmp_path):
    """Each answer is followed by the news that the worker is clean; the last request ends the test."""

    @contextmanager
    def prepare(case):
        if case.workload.batch_size == 99:
            raise END
        with worker.prepare_case(case) as prepared:
            yield prepared

    last = msgspec.structs.replace(case, workload=Workload(batch_size=99, seq_len=8))
    replies = served(
        [
            MeasureRequest(case=case, protocol=PROTOCOL),
            TurnsRequest(cases=(case, case), protocol=PROTOCOL),
            NumericsRequest(base=case, candidate=case, declared="exact"),
            RatesRequest(device_type="cpu", subject="link"),
            FirstStepRequest(case=case),
            ProfileRequest(
                case=case, path=str(tmp_path / "t.json.gz"), n_steps=1, with_stack=False
            ),
            MeasureRequest(case=last, protocol=PROTOCOL),
        ],
        prepare,
    )
    assert [type(each) for each in replies if not isinstance(each, Event)] == [
        Ready,
        *(Measured, Released),
        *(TurnsTimed, Released),
        *(NumericsChecked, Released),
        *(RatesMeasured, Released),
        *(FirstStepProfiled, Released),
        *(Profiled, Released),
        Failed,
    ]
    assert all(each.clean for each in replies if isinstance(each, Released))
    measured = next(each for each in replies if isinstance(each, Measured))
    assert measured.loss > 0
    assert measured.n_parameters > 0
    numerics = next(each for each in replies if isinstance(each, NumericsChecked))
    assert numerics.verdict.verdict == "holds"
