"""A worker's jobs over steps that do nothing but count."""

from contextlib import contextmanager

import msgspec
import pytest

from peakward.lab.measure import jobs
from peakward.lab.measure.crowd import Crowd
from peakward.lab.measure.messages import MeasureRequest, TurnsRequest
from peakward.lab.measure.site import Site
from peakward.lab.measure.timer import Timing
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Protocol, Run, Telemetry

PROTOCOL = Protocol(warmup_steps=1, min_steps=5, max_steps=5)


class Counted:
    """A prepared case that counts what is asked of it."""

    n_parameters = 3
    times_phases = True

    def __init__(self, log, name, loss=1.0):
        self.log, self.name, self._loss = log, name, loss

    def step(self, mark=None):
        self.log.append(self.name)
        if mark is not None:
            for phase in ("forward", "backward", None):
                mark(phase)

    def loss(self):
        return self._loss

    def held_for_backward_bytes(self):
        return 7


@pytest.fixture
def case(make_shape):
    return ModelCase(model=make_shape(), workload=Workload(batch_size=1, seq_len=8), device="cpu")


@pytest.fixture(scope="module")
def site():
    return Site()


@pytest.fixture
def make_bench(site):
    """make_bench(loss=..., **attributes): a bench whose cases are counted in its `log`."""

    def make(loss=1.0, **attributes):
        log, events = [], []

        @contextmanager
        def prepare(case):
            name = "compiled" if case.configuration.compile != "none" else "plain"
            log.append(f"+{name}")
            prepared = Counted(log, name, loss)
            for key, value in attributes.items():
                setattr(prepared, key, value)
            yield prepared
            log.append(f"-{name}")

        bench = jobs.Bench(site, prepare, events.append)
        return bench, log, events

    return make


def test_measure_times_then_takes_phases(make_bench, case):
    bench, log, events = make_bench()
    found = jobs.measure(MeasureRequest(case=case, protocol=PROTOCOL), bench)
    assert log == ["+plain", *["plain"] * (1 + 5 + 1 + 20), "-plain"]
    assert (len(found.run.warmup_s), len(found.run.steps_s)) == (1, 5)
    assert [each.phase for each in found.phases] == ["forward", "backward"]
    assert (found.loss, found.n_parameters, found.compile) == (1.0, 3, None)
    assert found.memory.peak_allocated_bytes >= 0
    assert found.memory.held_for_backward_bytes == 7
    assert [each.stage for each in events] == ["building", "warming up", "timing"]
    assert events[-1].total == 5


@pytest.mark.parametrize("asked", [True, False])
def test_phases_only_where_asked_for_and_possible(make_bench, case, asked):
    protocol = msgspec.structs.replace(PROTOCOL, phases=asked)
    bench, log, _ = make_bench(times_phases=not asked)
    assert jobs.measure(MeasureRequest(case=case, protocol=protocol), bench).phases == ()
    assert log.count("plain") == 6


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_must_be_finite(make_bench, case, loss):
    bench, _, _ = make_bench(loss=loss)
    with pytest.raises(PeakwardError, match=f"expected a finite loss, got {loss} after 6 steps"):
        jobs.measure(MeasureRequest(case=case, protocol=PROTOCOL), bench)


def test_no_loss_is_no_fault():
    run = Timing(run=Run(warmup_s=(), steps_s=(1.0,)), unsteady=None)
    assert jobs.checked_loss(None, run) is None


def in_turn(case, *modes):
    """A request for the case under each of these settings of compilation."""
    protocol = msgspec.structs.replace(PROTOCOL, warmup_steps=0, min_steps=1, max_steps=1)
    cases = (
        msgspec.structs.replace(case, configuration=Configuration(compile=mode)) for mode in modes
    )
    return TurnsRequest(cases=tuple(cases), protocol=protocol)


def test_cases_take_turns_one_resident_at_a_time(make_bench, case):
    bench, log, events = make_bench()
    found = jobs.time_turns(in_turn(case, "none", "default", "none"), bench)
    assert log == [
        *("+plain", "plain", "-plain"),
        *("+compiled", "compiled", "-compiled"),
        *("+plain", "plain", "-plain"),
    ]
    assert len(found.turns) == 3
    assert all(turn.median_s > 0 for turn in found.turns)
    assert [each.turn for each in events if each.stage == "building"] == [0, 1, 2]


def test_a_turn_has_the_energy_that_its_sensors_counted(make_bench, case, monkeypatch):
    class Sensors(Crowd):
        def telemetry(self, n_steps, /):
            return Telemetry(energy_per_step_j=2.0 * n_steps)

    bench, _, _ = make_bench()
    request = in_turn(case, "none")
    assert jobs.time_turns(request, bench).turns[0].energy_j is None, "a CPU counts none"
    monkeypatch.setattr(bench.site, "watch", lambda device: Sensors())
    (turn,) = jobs.time_turns(request, bench).turns
    assert turn.energy_j == 2.0 * request.protocol.max_steps


def test_the_case_that_failed_is_the_last_one_told(make_bench, case):
    bench, _, events = make_bench(loss=float("nan"))
    with pytest.raises(PeakwardError):
        jobs.time_turns(in_turn(case, "default", "none"), bench)
    assert events[-1].turn == 0
