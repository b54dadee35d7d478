"""The worker's loop, in this process: what it answers, and when it stops."""

import io
import os
from contextlib import contextmanager
from queue import SimpleQueue

import msgspec
import pytest

from peakward.lab.measure import worker
from peakward.lab.measure.messages import (
    CheckRequest,
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
from peakward.records.lever import Claim
from peakward.records.measurement import Protocol

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
    incoming.put(None)
    worker.serve(incoming, replies, prepare)
    return decoded(replies)


def decoded(replies):
    return [msgspec.json.decode(line, type=Reply) for line in replies.getvalue().splitlines()]


END = RuntimeError("end of the test")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (PeakwardError("expected one kind of CUDA graphs"), "invalid", "expected one kind"),
        (MemoryError(), "oom", "MemoryError"),
        (ValueError("bad\nshape"), "crashed", "ValueError: bad"),
        (SystemExit(3), "crashed", "SystemExit: 3"),
        (KeyboardInterrupt(), "crashed", "KeyboardInterrupt"),
    ],
)
def test_a_failure_is_answered_and_is_the_last_thing_served(case, error, status, reason):
    request = MeasureRequest(case=case, protocol=PROTOCOL)
    replies = served([request, request], failing(error))
    assert [type(each) for each in replies] == [Ready, Event, Failed]
    assert replies[-1].status == status
    assert replies[-1].reason.startswith(reason)


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON\n",
        b"\xff\n",
        b"[" * 10_000 + b"\n",
        b'{"type":"MeasureRequest"}\n',
        b'{"type":"CheckRequest","case":{"memory_limit_bytes":"5000000"}}\n',
    ],
)
def test_a_request_that_cannot_be_read_is_answered_at_once_and_the_last_thing_served(line):
    incoming, replies = SimpleQueue(), io.BytesIO()
    worker._listen(io.BytesIO(line), incoming)
    worker.serve(incoming, replies, failing(END))
    ready, failed = decoded(replies)
    assert (type(ready), failed.status) == (Ready, "invalid")
    assert failed.reason.startswith("expected a request of plain values, got ")


def test_a_worker_ends_when_its_requests_do():
    incoming, replies = SimpleQueue(), io.BytesIO()
    worker._listen(io.BytesIO(b""), incoming)
    worker.serve(incoming, replies, failing(END))
    assert [type(each) for each in decoded(replies)] == [Ready]


def test_requests_whose_pipe_a_user_s_code_closed_have_ended():
    incoming = SimpleQueue()
    read, write = os.pipe()
    with os.fdopen(read, "rb") as requests:
        os.close(read)
        worker._listen(requests, incoming)
        os.dup2(write, read)  # for the file's own close
    os.close(write)
    assert incoming.get() is None


def test_the_pipes_are_where_nobody_comes_by_accident():
    read, write = os.pipe()
    moved = worker._out_of_reach(write)
    try:
        assert moved > 100
        assert not os.get_inheritable(moved)
        os.write(moved, b"x")
        assert os.read(read, 1) == b"x"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(write, b"x")
    finally:
        os.close(read)
        os.close(moved)


def test_a_fork_of_a_user_s_code_does_not_answer(case, tmp_path):
    """It comes back from the step as the worker does."""
    path = tmp_path / "replies"

    @contextmanager
    def forking(case):
        child = os.fork()
        if child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        raise END
        yield

    incoming = SimpleQueue()
    incoming.put(MeasureRequest(case=case, protocol=PROTOCOL))
    with path.open("wb") as replies:
        worker.serve(incoming, replies, forking)
    kinds = [type(msgspec.json.decode(line, type=Reply)) for line in path.read_bytes().splitlines()]
    assert kinds == [Ready, Event, Failed]


def test_a_source_that_is_not_there_is_no_fault_of_the_module(make_module_case, at_user_modules):
    case = make_module_case("py:tiny_gpt:nothing")
    *_, checked, released = served([CheckRequest(case=case)], failing(END))
    assert checked.missing == "expected a function nothing in tiny_gpt, got nothing by that name"
    assert released.clean
    right = make_module_case("py:tiny_gpt:build")
    (at_user_modules / "tiny_gpt.py").write_text("changed = True")
    *_, checked, _ = served([CheckRequest(case=right)], failing(END))
    assert "its files have changed since" in checked.missing


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
            NumericsRequest(claims=(Claim(base=case, candidate=case, declared="exact"),)),
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
    assert [each.verdict for each in numerics.verdicts] == ["holds"]
