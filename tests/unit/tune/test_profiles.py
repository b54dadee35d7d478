"""A case is profiled once; its trace is kept; what fails is said and tried again."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from peakward.lab.measure.messages import Failed, Profiled
from peakward.models.presets import model
from peakward.records.case import ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.profile import CaseProfile
from peakward.store.database import Store
from peakward.tune.costs import Costs
from peakward.tune.ledger import Budget
from peakward.tune.profiles import N_STEPS, NotProfiled, Profiler, affordable

RECORDED = Path(__file__).parents[2] / "data" / "traces" / "h200_decoder_compiled.json.gz"
COSTS = Costs(start_s=1.0, arm_s=2.0, compile_s=30.0)


def case(batch_size=1):
    work = Workload(batch_size=batch_size, seq_len=8)
    return ModelCase(model=model("tiny"), workload=work, device="cpu")


COST_S = COSTS.profile_s(case())


class Hands:
    """The workers: each profile is a copy of a recorded trace, or the failure that is next."""

    def __init__(self, *failures):
        self.asked, self._failures, self.stopping = [], list(failures), False

    def profile(self, case, path, *, n_steps, timeout_s):
        self.asked.append(case)
        failure = self._failures.pop(0) if self._failures else None
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            return failure
        shutil.copy(RECORDED, path)
        return Profiled(path=str(path), n_steps=n_steps, profiled_step_s=0.25)

    def raise_if_stopping(self):
        if self.stopping:
            raise KeyboardInterrupt


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "a.db") as opened:
        yield opened


def test_a_profile_is_analysed_and_its_trace_kept(store):
    found = Profiler(Hands(), store, "here").profile(case())
    assert isinstance(found, CaseProfile)
    assert (found.case, found.environment_key, found.n_steps) == (case(), "here", N_STEPS)
    assert found.profiled_step_s == 0.25
    assert found.profile.source == found.trace
    assert found.profile.kernels
    assert any(each.roof_share for each in found.profile.operators), "an H200's roof is known"
    assert store.path_of(found.trace).read_bytes() == RECORDED.read_bytes()


def test_what_is_stored_is_not_profiled_again(store):
    hands = Hands()
    first = Profiler(hands, store, "here").profile(case())
    assert Profiler(hands, store, "here").profile(case()) == first
    assert hands.asked == [case()]
    Profiler(hands, store, "there").profile(case())
    Profiler(hands, store, "here").profile(case(2))
    assert len(hands.asked) == 3


@pytest.mark.parametrize(
    ("failure", "reason", "interrupted"),
    [
        (Failed(status="oom", reason="too big"), "oom: too big", False),
        (
            Failed(status="crashed", reason="interrupted by Ctrl-C", ended_by="user"),
            "interrupted by Ctrl-C",
            True,
        ),
        (PeakwardError("expected a GPU, got none"), "expected a GPU, got none", False),
    ],
)
def test_a_failure_is_said_and_tried_again_by_the_next_run(store, failure, reason, interrupted):
    hands = Hands(failure)
    profiler = Profiler(hands, store, "here")
    found = profiler.profile(case())
    assert isinstance(found, NotProfiled)
    assert (found.reason, found.interrupted) == (reason, interrupted)
    assert reason in found.note
    assert "tiny 1 × 8" in found.note
    assert profiler.profile(case()) is found, "not again in this run"
    assert len(hands.asked) == 1
    assert isinstance(Profiler(hands, store, "here").profile(case()), CaseProfile)


def test_ctrl_c_twice_ends_the_run_with_the_profile_stored(store):
    hands = Hands()
    hands.stopping = True
    profiler = Profiler(hands, store, "here")
    with pytest.raises(KeyboardInterrupt):
        profiler.profile(case())
    assert profiler.known(case()) is not None


def measured(*cases, status="ok"):
    return [SimpleNamespace(case=each, status=status) for each in cases]


def afford(measurements, profiler, total_s):
    budget, stages = Budget(total_s, clock=lambda: 0.0), []
    found = affordable(measurements, profiler, budget=budget, costs=COSTS, on_stage=stages.append)
    return found, stages


def test_baseline_and_best_come_back_in_their_order(store):
    hands = Hands()
    found, stages = afford(measured(case(1), case(2)), Profiler(hands, store, "here"), COST_S)
    assert [each.case for each in found.made] == [case(1), case(2)]
    assert hands.asked == [case(2), case(1)], "the best matters more where time is short"
    assert len(stages) == 2
    assert (found.notes, found.interrupted) == ((), False)


def test_what_does_not_fit_is_left_out_with_a_note(store):
    hands = Hands()
    found, stages = afford(measured(case()), Profiler(hands, store, "here"), COST_S - 0.1)
    assert (found.made, stages, hands.asked) == ((), [], [])
    (note,) = found.notes
    assert "did not fit into what was left" in note


def test_what_is_stored_costs_nothing(store):
    profiler = Profiler(Hands(), store, "here")
    known = profiler.profile(case())
    assert afford(measured(case()), profiler, 0.0)[0].made == (known,)


def test_what_did_not_run_is_not_profiled(store):
    found, _ = afford(measured(case(), status="oom"), Profiler(Hands(), store, "here"), 99)
    assert (found.made, found.notes) == ((), ())


def test_ctrl_c_ends_the_profiling(store):
    hands = Hands(Failed(status="crashed", reason="interrupted by Ctrl-C", ended_by="user"))
    found, _ = afford(measured(case(1), case(2)), Profiler(hands, store, "here"), 99)
    assert found.interrupted
    assert hands.asked == [case(2)]
