"""The greedy search over a world in which every lever's effect is known."""

import msgspec
import pytest

from peakward.catalogue.levers import lever
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.measurement import Interval
from peakward.records.model_shape import ModelShape
from peakward.records.trial import NumericsVerdict, Pair, Trial
from peakward.tune.budget import Budget
from peakward.tune.costs import Costs
from peakward.tune.search import Search

SHAPE = ModelShape(
    name="t",
    vocab_size=100,
    n_layers=2,
    d_model=64,
    d_ff=128,
    n_heads=4,
    n_kv_heads=4,
    head_dim=16,
    max_seq_len=128,
)
BASE = ModelCase(model=SHAPE, workload=Workload(batch_size=2, seq_len=16), device="cuda")


class World:
    """Step times by a rule; every confirmation finds exactly them."""

    def __init__(self, time_s, *, runs=lambda case: True, numbers=lambda case: "holds"):
        self.time_s, self.runs, self.numbers = time_s, runs, numbers
        self.confirmed = []

    def screen(self, pulled, base, candidate):
        if not self.runs(candidate):
            return self.trial(pulled.name, base, candidate, status="oom", verdict="rejected")
        if not self.runs(base):
            return self.trial(pulled.name, base, candidate)
        ratio = self.time_s(candidate) / self.time_s(base)
        pair = Pair(process=0, base_s=self.time_s(base), candidate_s=self.time_s(candidate))
        return self.trial(
            pulled.name,
            base,
            candidate,
            pairs=(pair,),
            time_ratio=Interval(estimate=ratio, low=ratio * 0.99, high=ratio * 1.01),
            verdict="rejected" if ratio * 0.99 > 0.99 else "inconclusive",
        )

    def check(self, declared, base, candidate):
        verdict = self.numbers(candidate)
        return NumericsVerdict(declared=declared, verdict=verdict, reason="logits")

    def confirm(self, name, base, candidate, numerics, *, affords_more):
        self.confirmed.append(name)
        ratio = self.time_s(candidate) / self.time_s(base)
        return self.trial(
            name,
            base,
            candidate,
            stage="confirmed",
            numerics=numerics,
            time_ratio=Interval(estimate=ratio, low=ratio, high=ratio),
            verdict="kept" if ratio <= 0.99 else "rejected",
        )

    @staticmethod
    def trial(name, base, candidate, *, stage="screened", verdict="inconclusive", **fields):
        return Trial(
            id=name,
            lever=name,
            base=base,
            candidate=candidate,
            environment_key="here",
            stage=stage,
            verdict=verdict,
            reason="",
            **fields,
        )


def search(world, *, total_s=1e9, obstacle=lambda pulled, case: None):
    return Search(
        world,
        obstacle=obstacle,
        budget=Budget(total_s, clock=lambda: 0.0),
        costs=Costs(start_s=1.0, arm_s=1.0, compile_s=10.0),
        reserve_s=0.0,
        environment_key="here",
        on_stage=lambda stage: None,
    )


def configured(**fields):
    return msgspec.structs.replace(BASE, configuration=Configuration(**fields))


def two_bottlenecks(case):
    """Matmuls hide the launches: graphs gain only once the matmuls are quick."""
    settings = case.configuration
    device_s = {"fp32": 10.0, "tf32": 5.0, "bf16": 2.0}[settings.precision]
    launches_s = 1.0 if settings.cuda_graphs else 4.0
    return max(device_s, launches_s)


def test_a_lever_hidden_behind_another_bottleneck_is_found_on_top():
    found = search(World(two_bottlenecks))
    best = found.compose(BASE, [lever(name) for name in ("cuda-graphs", "tf32", "bf16")])
    assert best == configured(precision="bf16", cuda_graphs=True)
    kept = [trial.lever for trial in found.trials if trial.verdict == "kept"]
    assert kept == ["bf16", "cuda-graphs"]


def test_a_stronger_lever_on_the_same_field_replaces_a_kept_one_once_it_shows():
    """Both precisions leave the launches to be waited for; tf32 was a hair ahead."""

    def time_s(case):
        settings = case.configuration
        device_s = {"fp32": 10.0, "tf32": 3.0, "bf16": 2.0}[settings.precision]
        launches_s = 0.5 if settings.cuda_graphs else 4.0
        return max(device_s, launches_s + (0.1 if settings.precision == "bf16" else 0.0))

    world = World(time_s)
    best = search(world).compose(BASE, [lever(n) for n in ("bf16", "tf32", "cuda-graphs")])
    assert world.confirmed == ["tf32", "cuda-graphs", "bf16"]
    assert best == configured(precision="bf16", cuda_graphs=True)


def test_a_weaker_lever_on_the_same_field_is_not_confirmed_on_top():
    world = World(two_bottlenecks)
    search(world).compose(BASE, [lever("tf32"), lever("bf16")])
    assert world.confirmed == ["bf16"]


def test_a_lever_that_gained_nothing_comes_again_once_another_is_kept():
    """The fused optimiser shows only when launches no longer hide it, and they go last."""

    def time_s(case):
        settings = case.configuration
        update_s = 0.5 if settings.optimizer == "adamw-fused" else 1.5
        if settings.precision == "fp32":
            return 10.0 + (0.3 if settings.optimizer == "adamw-foreach" else 0.0)
        return 1.0 + update_s if settings.cuda_graphs else 8.0

    found = search(World(time_s))
    names = ("fused-optimizer", "cuda-graphs", "bf16")
    best = found.compose(BASE, [lever(name) for name in names])
    assert best == configured(precision="bf16", cuda_graphs=True, optimizer="adamw-fused")


def test_a_round_confirms_what_gains_most_on_what_is_kept():
    """Flash attention gained more alone; graphs gain more once the matmuls are quick."""

    def time_s(case):
        settings = case.configuration
        attention_s = 0.5 if settings.attention == "sdpa" else 1.0
        return two_bottlenecks(case) + attention_s

    world = World(time_s)
    best = search(world).compose(BASE, [lever(n) for n in ("sdpa", "cuda-graphs", "bf16")])
    assert world.confirmed == ["bf16", "cuda-graphs", "sdpa"]
    assert best == configured(precision="bf16", cuda_graphs=True, attention="sdpa")


def test_a_lever_that_loses_is_rejected_with_its_number():
    found = search(World(lambda case: 3.0 if case.configuration.attention == "sdpa" else 2.0))
    assert found.compose(BASE, [lever("sdpa")]) == BASE
    (trial,) = found.trials
    assert (trial.verdict, trial.time_ratio.estimate) == ("rejected", 1.5)


def test_wrong_numbers_reject_a_fast_lever_before_it_is_confirmed():
    world = World(two_bottlenecks, numbers=lambda case: "violated")
    found = search(world)
    assert found.compose(BASE, [lever("bf16")]) == BASE
    assert world.confirmed == []
    assert found.trials[-1].verdict == "rejected"
    assert "not approximate as declared" in found.trials[-1].reason


def test_numbers_that_could_not_be_checked_keep_nothing():
    world = World(two_bottlenecks, numbers=lambda case: "not computed")
    found = search(world)
    assert found.compose(BASE, [lever("bf16")]) == BASE
    assert world.confirmed == []
    assert found.trials[-1].verdict == "inconclusive"
    assert "could not be checked" in found.trials[-1].reason


def test_a_rescue_with_wrong_numbers_is_rejected():
    world = World(
        two_bottlenecks,
        runs=lambda case: case.configuration.precision == "bf16",
        numbers=lambda case: "violated",
    )
    found = search(world)
    assert found.compose(BASE, [lever("bf16")]) == BASE
    assert found.trials[-1].verdict == "rejected"


def test_one_lever_is_its_own_proof():
    world = World(two_bottlenecks)
    found = search(world)
    found.prove(BASE, found.compose(BASE, [lever("bf16")]))
    assert world.confirmed == ["bf16"]


def test_a_composition_on_a_base_that_does_not_run_is_not_paired_with_it():
    world = World(two_bottlenecks, runs=lambda case: case.configuration.precision == "bf16")
    found = search(world)
    best = found.compose(BASE, [lever("bf16"), lever("cuda-graphs")])
    assert best == configured(precision="bf16", cuda_graphs=True)
    found.prove(BASE, best)
    assert world.confirmed == ["cuda-graphs"]


def test_what_runs_where_the_base_does_not_is_kept_even_if_it_saves_only_memory():
    world = World(two_bottlenecks, runs=lambda case: case.configuration.checkpointing != "none")
    found = search(world)
    best = found.compose(BASE, [lever("bf16"), lever("checkpointing")])
    assert best == configured(precision="bf16", checkpointing="every-block")


def test_a_memory_lever_stays_out_of_a_composition_that_runs():
    best = search(World(lambda case: 1.0)).compose(BASE, [lever("checkpointing")])
    assert best == BASE


def test_a_lever_that_cannot_apply_is_refused_until_it_can():
    def obstacle(pulled, case):
        blocked = pulled.name == "sdpa-cudnn" and case.configuration.precision == "fp32"
        return "needs 16 bits" if blocked else None

    def time_s(case):
        quick = 0.5 if case.configuration.attention == "sdpa-cudnn" else 1.0
        return two_bottlenecks(case) + quick

    found = search(World(time_s), obstacle=obstacle)
    best = found.compose(BASE, [lever("sdpa-cudnn"), lever("bf16")])
    assert best == configured(precision="bf16", attention="sdpa-cudnn")
    refused = [trial for trial in found.trials if trial.stage == "refused"]
    assert [trial.reason for trial in refused] == ["needs 16 bits"]


def test_a_lever_that_the_base_already_has_is_not_tried():
    found = search(World(two_bottlenecks))
    found.compose(configured(precision="bf16"), [lever("bf16")])
    assert found.trials == []


@pytest.mark.parametrize("total_s", [0.0, 3.0])
def test_what_the_budget_does_not_allow_is_named(total_s):
    found = search(World(two_bottlenecks), total_s=total_s)
    assert found.compose(BASE, [lever("bf16")]) == BASE
    assert found.skipped == ["screening bf16" if total_s == 0.0 else "confirming bf16"]


def test_the_composition_is_proved_against_the_base_itself():
    world = World(two_bottlenecks)
    found = search(world)
    best = found.compose(BASE, [lever("bf16"), lever("cuda-graphs")])
    found.prove(BASE, best)
    last = found.trials[-1]
    assert (last.lever, last.base, last.candidate) == ("composition", BASE, best)
    assert last.numerics.declared == "approximate", "the weakest class of those kept"
    assert last.time_ratio.estimate == pytest.approx(0.2)
