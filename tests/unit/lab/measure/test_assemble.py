"""A worker's answer as the record that is stored."""

import pytest

from peakward.lab.measure import assemble, probe
from peakward.lab.measure.messages import Failed, Measured
from peakward.records.case import StepCase
from peakward.records.measurement import MemoryUse, Protocol, Run

CASE = StepCase(name="any", fingerprint="0", device="cpu")


def measured(steps_s=(1.0,) * 10, doubts=()):
    return Measured(
        run=Run(warmup_s=(3.0,), steps_s=steps_s),
        doubts=doubts,
        phases=(),
        memory=MemoryUse(peak_allocated_bytes=1),
        telemetry=None,
        compile=None,
        n_parameters=None,
        loss=None,
    )


def assembled(answer, **extra):
    environment, watch = probe.environment("cpu"), assemble.Stopwatch()
    return assemble.measurement(CASE, Protocol(), environment, watch, answer, **extra)


def test_a_failure_keeps_its_status_and_reason_and_no_numbers():
    found = assembled(Failed(status="oom", reason="too big"), doubts=("busy",))
    assert (found.status, found.reason) == ("oom", "too big; busy")
    assert found.validity is None
    assert found.summary is None


@pytest.mark.parametrize(
    ("told", "doubts", "notes", "verdict"),
    [
        ((), (), (), "stable"),
        ((), (), ("in process",), "stable"),
        ((), ("GPU busy",), (), "unstable"),
        (("no steady step time",), (), (), "unstable"),
    ],
)
def test_doubts_make_stable_times_unstable_and_notes_do_not(told, doubts, notes, verdict):
    found = assembled(measured(doubts=told), doubts=doubts, notes=notes)
    assert found.validity.verdict == verdict
    said = (*told, *doubts, *notes)
    assert found.validity.reasons == said


def test_times_that_are_unstable_by_themselves_stay_so_with_both_reasons():
    found = assembled(measured(steps_s=(1.0, 2.0) * 5), doubts=("GPU busy",))
    assert found.validity.verdict == "unstable"
    assert len(found.validity.reasons) >= 2
    assert found.validity.reasons[-1] == "GPU busy"


def test_every_record_has_its_own_name_and_time():
    a, b = assembled(measured()), assembled(measured())
    assert a.id != b.id
    assert a.started_at.endswith("+00:00")
    assert a.wall_s > 0
