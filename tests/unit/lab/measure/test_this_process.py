"""What is asked of a case that lives in this process, and what goes to a worker all the same."""

from contextlib import contextmanager, nullcontext

import pytest
import torch

from peakward.lab.levers.given_step import Given, GivenStep
from peakward.lab.measure.isolated import Ended, Workers
from peakward.lab.measure.messages import CalibrateRequest, Failed
from peakward.lab.measure.this_process import LiveSite, ThisProcess
from peakward.records.case import StepCase
from peakward.records.measurement import Protocol

CASE = StepCase(name="step", fingerprint="", device="cpu")
QUICK = Protocol(warmup_steps=1, min_steps=2, max_steps=2, phases=False)


class Here(ThisProcess):
    """One step, and a diary."""

    def __init__(self, step):
        super().__init__(torch.device("cpu"))
        self.diary, self._step = [], step

    @contextmanager
    def _kept(self):
        self.diary.append("kept")
        yield
        self.diary.append("put back")

    def _prepare(self, case):
        return nullcontext(GivenStep(Given(step=self._step), None))

    def _expect_buildable(self, case): ...

    def _judged(self, request): ...

    def _captured(self, case): ...

    def _check(self, case): ...


def test_each_request_is_answered_here_and_leaves_nothing():
    calls = []
    with Here(lambda: calls.append(1)) as workers:
        assert workers.measure(CASE, QUICK).status == "ok"
        assert workers.turns((CASE, CASE), QUICK).status == "ok"
        assert workers._process is None
    assert len(calls) == 9
    assert workers.diary == ["kept", "put back"] * 2
    assert workers.rounds == "rounds of one process"


def test_what_a_step_raises_is_a_status():
    def fails():
        raise RuntimeError("CUDA out of memory")

    with Here(fails) as workers:
        assert workers.measure(CASE, QUICK).status == "oom"
    assert workers.diary == ["kept", "put back"]


def test_a_calibration_goes_to_a_worker(monkeypatch):
    asked = []

    def ask(self, request, timeout_s, **_):
        asked.append(request)
        return Ended(Failed(status="crashed", reason="no worker in this test"), None)

    monkeypatch.setattr(Workers, "_ask", ask)
    with Here(lambda: None) as workers, pytest.raises(Exception, match="no worker in this test"):
        workers.calibrate("cpu")
    assert asked == [CalibrateRequest(device_type="cpu")]


def test_the_site_gives_back_without_asking_for_a_floor():
    assert LiveSite(torch.device("cpu")).leave("cpu") is True
