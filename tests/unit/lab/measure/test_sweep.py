"""A sweep runs what the store lacks, and stores it before anything else can happen."""

import msgspec
import pytest

from peakward.lab.measure import assemble, probe
from peakward.lab.measure.messages import Checked, Failed
from peakward.lab.measure.sweep import Sweep
from peakward.records.case import MicroCase, ModelCase, Workload
from peakward.records.measurement import Protocol

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
                return each if each.final else None
        return None

    def add_measurement(self, measurement):
        self.kept.append(measurement)


SOUND = Checked()


class Hands:
    """The workers: every case is ended by the next of these; this is found of a module."""

    def __init__(self, ended_by=(), found=SOUND):
        self.ran, self.ended_by, self.stop_after = [], list(ended_by), None
        self.checked, self.found = [], found

    def check(self, case, timeout_s):
        self.checked.append((case, timeout_s))
        return self.found

    def measure(self, case, protocol):
        self.ran.append(case)
        ended_by = self.ended_by.pop(0) if self.ended_by else "case"
        answer = Failed(status="oom", reason="too big", ended_by=ended_by)
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


@pytest.mark.parametrize("ended_by", ["user", "outside"])
def test_a_case_that_did_not_end_by_itself_runs_again(cases, ended_by):
    shelf, hands = Shelf(), Hands([ended_by])
    sweep = Sweep(shelf, hands, ENVIRONMENT)
    assert not sweep.measure(cases[0], PROTOCOL).final
    assert sweep.measure(cases[0], PROTOCOL).final
    assert sweep.measure(cases[0], PROTOCOL).final
    assert len(hands.ran) == 2


def test_what_is_wrong_with_a_module_is_the_result_of_all_its_cases(make_module_case, cases):
    wrong = Failed(status="invalid", reason="expected a batch that fits")
    shelf, hands = Shelf(), Hands(found=wrong)
    sweep, quick = Sweep(shelf, hands, ENVIRONMENT), Protocol(timeout_s=5.0)
    modules = [make_module_case("py:tiny_gpt:build", precision=each) for each in ("fp32", "bf16")]
    found = sweep.measure_all([(each, quick) for each in (*modules, cases[0])])
    assert [each.status for each in found] == ["invalid", "invalid", "oom"]
    assert [each.reason for each in found[:2]] == [wrong.reason] * 2
    assert all(each.final for each in found)
    assert hands.checked == [(modules[0], 5.0)], "once, in the time of a case"
    assert hands.ran == [cases[0]]
    sweep.measure_all([(each, quick) for each in modules])
    assert len(hands.checked) == 1
    assert shelf.kept == list(found)


def test_a_sound_module_is_checked_once_for_each_workload_and_measured(make_module_case):
    hands = Hands()
    sweep = Sweep(Shelf(), hands, ENVIRONMENT)
    source = "py:tiny_gpt:build"
    modules = [
        make_module_case(source),
        make_module_case(source, precision="bf16"),
        make_module_case(source, pass_="forward"),
    ]
    sweep.measure_all([(each, PROTOCOL) for each in modules])
    assert [case for case, _ in hands.checked] == [modules[0], modules[2]]
    assert hands.ran == modules
    again = Sweep(sweep.store, hands, ENVIRONMENT)
    again.measure_all([(each, PROTOCOL) for each in modules])
    assert len(hands.checked) == 2, "what is stored is not checked"


def test_ctrl_c_twice_ends_the_sweep_with_its_last_result_stored(cases):
    shelf, hands = Shelf(), Hands()
    hands.stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        Sweep(shelf, hands, ENVIRONMENT).measure_all([(case, PROTOCOL) for case in cases])
    assert len(shelf.kept) == 2
