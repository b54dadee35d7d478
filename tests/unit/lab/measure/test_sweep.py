"""A sweep runs what the store lacks, and stores it before anything else can happen."""

import msgspec
import pytest

from peakward.lab.measure import assemble, probe
from peakward.lab.measure.messages import Failed
from peakward.lab.measure.sweep import Sweep
from peakward.records.case import MicroCase, ModelCase, Workload
from peakward.records.protocol import Protocol

PROTOCOL = Protocol()
ENVIRONMENT = probe.environment("cpu")


class Shelf:
    """The store, in memory."""

    def __init__(self):
        self.kept = []

    def measurement(self, case, protocol, environment_key):
        for each in reversed(self.kept):
            if (each.case, each.protocol, each.environment.key) == (
                case,
                protocol,
                environment_key,
            ):
                return each if not (each.reason or "").startswith("interrupted") else None
        return None

    def add_measurement(self, measurement):
        self.kept.append(measurement)


class Hands:
    """The workers: every case ends with the next of these reasons."""

    def __init__(self, reasons=()):
        self.ran, self.reasons, self.stop_after = [], list(reasons), None

    def measure(self, case, protocol):
        self.ran.append(case)
        reason = self.reasons.pop(0) if self.reasons else "too big"
        answer = Failed(status="oom", reason=reason)
        return assemble.measurement(case, protocol, ENVIRONMENT, assemble.Stopwatch(), answer)

    def raise_if_stopping(self):
        if len(self.ran) == self.stop_after:
            raise KeyboardInterrupt


@pytest.fixture
def cases(make_shape):
    return [
        ModelCase(model=make_shape(), workload=Workload(batch_size=n, seq_len=8), device="cpu")
        for n in (1, 2, 3)
    ]


def test_what_runs_on_the_cpu_beside_a_gpu_is_found_under_the_cpus_environment():
    shelf, hands = Shelf(), Hands()
    hands.environment = probe.environment
    gpu = msgspec.structs.replace(ENVIRONMENT, device_type="cuda", device_name="a GPU")
    sweep = Sweep(shelf, hands, gpu)
    case = MicroCase(subject="matmul", piece="numpy", sizes=(8,), device="cpu")
    first, again = (sweep.measure(case, PROTOCOL) for _ in range(2))
    assert hands.ran == [case]
    assert first == again


def test_each_case_runs_once_however_it_ends(cases):
    shelf, hands, done = Shelf(), Hands(), []
    sweep = Sweep(shelf, hands, ENVIRONMENT, done.append)
    plan = [(case, PROTOCOL) for case in cases]
    first = sweep.measure_all(plan)
    again = sweep.measure_all(plan)
    assert hands.ran == cases
    assert first == again == tuple(shelf.kept)
    assert done == [*first, *again]


def test_another_protocol_or_machine_is_another_result(cases):
    shelf, hands = Shelf(), Hands()
    Sweep(shelf, hands, ENVIRONMENT).measure(cases[0], PROTOCOL)
    Sweep(shelf, hands, ENVIRONMENT).measure(cases[0], Protocol(min_steps=3))
    elsewhere = msgspec.structs.replace(ENVIRONMENT, device_name="another")
    Sweep(shelf, hands, elsewhere).measure(cases[0], PROTOCOL)
    assert len(hands.ran) == 3


def test_an_interrupted_case_runs_again(cases):
    shelf, hands = Shelf(), Hands(["interrupted by Ctrl-C"])
    sweep = Sweep(shelf, hands, ENVIRONMENT)
    sweep.measure(cases[0], PROTOCOL)
    assert sweep.measure(cases[0], PROTOCOL).reason == "too big"
    assert len(hands.ran) == 2


def test_ctrl_c_twice_ends_the_sweep_with_its_last_result_stored(cases):
    shelf, hands = Shelf(), Hands()
    hands.stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        Sweep(shelf, hands, ENVIRONMENT).measure_all([(case, PROTOCOL) for case in cases])
    assert len(shelf.kept) == 2
