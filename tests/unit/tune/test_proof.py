"""Which steps a proof leaves, by confirmations of known outcome."""

import msgspec
import pytest

from peakward.levers.catalogue import lever
from peakward.tune.lever_stack import LeverStack

from .world import BASE, Investigated, World, configured, name_of, two_bottlenecks


def levers(*names):
    return tuple(lever(name) for name in names)


def additive(case):
    """Every lever takes its own share off the step."""
    settings = case.configuration
    step_s = 5.0 if settings.precision == "fp32" else 2.0
    step_s += 0.0 if settings.attention == "naive" else -0.5
    return step_s - 0.25 * settings.cuda_graphs - 0.2 * (settings.compile != "none")


def proved(world, *names, **fields):
    found = Investigated(world, **fields)
    held = found.proof.prove(LeverStack(base=BASE, levers=levers(*names)))
    return found, [each.name for each in held.levers]


def test_all_rungs_are_timed_in_the_same_processes():
    world = World(additive)
    _, names = proved(world, "bf16", "sdpa", "cuda-graphs")
    assert names == ["bf16", "sdpa", "cuda-graphs"]
    assert world.proofs == [["base", "bf16", "bf16 sdpa", "bf16 sdpa True"]]


def test_the_composition_is_held_to_the_base_itself():
    found, _ = proved(World(two_bottlenecks), "bf16", "cuda-graphs")
    whole = found.trials[-1]
    assert whole.lever == "composition"
    assert (whole.base, whole.candidate) == (BASE, configured(precision="bf16", cuda_graphs=True))
    assert whole.numerics.declared == "approximate", "the weakest class of those kept"
    assert whole.time_ratio.estimate == pytest.approx(0.2)


def test_one_lever_is_its_own_composition():
    found, names = proved(World(additive), "bf16")
    assert names == ["bf16"]
    assert [trial.lever for trial in found.trials] == ["bf16"]


def test_a_rung_that_does_not_hold_comes_back_once_at_the_top():
    slow = World(lambda case: additive(case) + 1.0 * (case.configuration.attention == "sdpa"))
    found, names = proved(slow, "bf16", "sdpa", "cuda-graphs")
    assert names == ["bf16", "cuda-graphs"]
    assert slow.proofs[1] == ["base", "bf16", "bf16 True", "bf16 sdpa True"]
    verdicts = {(trial.lever, name_of(trial.base)): trial.verdict for trial in found.trials}
    assert verdicts["sdpa", "bf16"] == verdicts["sdpa", "bf16 True"] == "rejected"
    assert found.trials[-1].candidate == configured(precision="bf16", cuda_graphs=True)


def test_what_another_bottleneck_hid_holds_at_the_top():
    world = World(two_bottlenecks)
    _, names = proved(world, "cuda-graphs", "bf16")
    assert names == ["bf16", "cuda-graphs"]
    assert len(world.proofs) == 2


def test_a_second_proof_that_is_slower_is_not_followed():
    """At the top the unsettled step holds, but without it below them the others do not."""

    def time_s(case):
        settings = case.configuration
        order = 1.0 if settings.precision == "bf16" and settings.attention == "naive" else 0.0
        return additive(case) + order

    unsettled = {"sdpa"}
    world = World(time_s, settles=lambda name, base: name not in unsettled)
    _, names = proved(world, "sdpa", "bf16")
    assert names == ["sdpa", "bf16"], "an unsettled step stays below one that holds"
    assert world.proofs[1] == ["base", "bf16", "bf16 sdpa"]


def test_the_top_rung_goes_without_another_proof():
    slow = World(lambda case: additive(case) + 1.0 * case.configuration.cuda_graphs)
    found, names = proved(slow, "bf16", "sdpa", "cuda-graphs")
    assert names == ["bf16", "sdpa"]
    assert len(slow.proofs) == 1
    assert found.trials[-1].candidate == configured(precision="bf16", attention="sdpa")


def test_what_is_unsettled_comes_back_once_at_the_top():
    """On a noisy host alone, sdpa's gain cannot be told; on top of graphs it can."""
    world = World(
        additive, settles=lambda name, base: name != "sdpa" or base.configuration.cuda_graphs
    )
    _, names = proved(world, "bf16", "sdpa", "cuda-graphs")
    assert names == ["bf16", "cuda-graphs", "sdpa"]
    assert len(world.proofs) == 2


def test_what_stays_unsettled_at_the_top_is_left_out():
    """Below the top it made nothing faster either."""

    def time_s(case):
        return additive(case) + 0.5 * (case.configuration.attention == "sdpa")

    world = World(time_s, settles=lambda name, base: name != "sdpa")
    found, names = proved(world, "bf16", "sdpa", "cuda-graphs")
    assert names == ["bf16", "cuda-graphs"]
    assert len(world.proofs) == 2
    assert {trial.verdict for trial in found.trials if trial.lever == "sdpa"} == {"inconclusive"}


def test_without_time_for_another_proof_the_rungs_below_are_left():
    """Four cases of 1 s in each of three processes that start in 1 s take 15 s, and are to be checked in
    6 s."""
    slow = World(lambda case: additive(case) + 1.0 * (case.configuration.attention == "sdpa"))
    found, names = proved(slow, "bf16", "sdpa", "cuda-graphs", total_s=21.0)
    assert names == ["bf16"]
    assert found.skipped == ["confirming the composition again"]


def test_with_little_time_what_held_is_proved_again_without_what_did_not():
    """A lever that is rejected takes what stands on it with it; to try it once more at the top costs a case
    more than the others alone."""
    slow = World(lambda case: additive(case) + 1.0 * (case.configuration.attention == "sdpa"))
    found, names = proved(slow, "sdpa", "bf16", "cuda-graphs", total_s=28.0)
    assert names == ["bf16", "cuda-graphs"]
    assert [len(cases) for cases in slow.proofs] == [4, 3]
    assert found.skipped == []


@pytest.mark.parametrize("total_s", [10.0, 15.0])
def test_with_little_time_the_whole_is_proved_and_not_its_steps(total_s):
    """Three cases and their checks take 16 s in three processes; two take 12 s, and 9 s in two processes."""
    world = World(additive)
    found, names = proved(world, "bf16", "sdpa", total_s=total_s)
    assert names == ["bf16 + sdpa"]
    assert world.proofs == [["base", "bf16 sdpa"]]
    (trial,) = found.trials
    assert (trial.verdict, trial.levers) == ("kept", ("bf16", "sdpa"))
    assert trial.numerics.declared == "approximate"


def test_what_is_proved_is_not_timed_again_below_what_came_on_top():
    world = World(additive)
    found, _ = proved(world, "bf16", "sdpa")
    higher = LeverStack(base=BASE, levers=levers("bf16", "sdpa", "cuda-graphs"))
    held = found.proof.prove(higher)
    assert held == higher
    assert world.proofs[1] == ["base", "bf16 sdpa", "bf16 sdpa True"]


def test_levers_that_were_proved_together_are_one_step_below_what_came_on_top():
    world = World(additive)
    found = Investigated(world, total_s=13.0)
    proved_ = found.proof.prove(LeverStack(base=BASE, levers=levers("bf16", "sdpa")))
    found.ledger.reserve_s = -1e9  # As much time as it takes.
    held = found.proof.prove(proved_.on_top(lever("cuda-graphs")))
    assert [each.name for each in held.levers] == ["bf16 + sdpa", "cuda-graphs"]
    assert world.proofs[-1] == ["base", "bf16 sdpa", "bf16 sdpa True"]


def test_of_levers_tried_together_the_one_with_wrong_numbers_is_taken_out():
    world = World(
        additive,
        numbers=lambda case: "violated" if case.configuration.attention == "sdpa" else "holds",
    )
    _, names = proved(world, "bf16", "sdpa", total_s=13.0)
    assert names == ["bf16"]


def test_what_there_is_no_time_to_prove_is_named():
    found, names = proved(World(additive), "bf16", "sdpa", total_s=4.0)
    assert names == []
    assert found.skipped == ["confirming sdpa", "confirming bf16"]


def test_a_proof_goes_before_what_the_reserve_is_for():
    _, names = proved(World(additive), "bf16", "sdpa", total_s=17.0, reserve_s=10.0)
    assert names == ["bf16 + sdpa"]


def test_a_composition_that_cannot_be_pulled_in_another_order_is_not():
    """cuDNN's attention needs 16 bits, so bf16 cannot come above it."""

    def obstacle(pulled, case):
        blocked = pulled.name == "sdpa-cudnn" and case.configuration.precision == "fp32"
        return "needs 16 bits" if blocked else None

    world = World(additive, settles=lambda name, base: name != "bf16")
    _, names = proved(world, "bf16", "sdpa-cudnn", obstacle=obstacle)
    assert names == ["bf16", "sdpa-cudnn"], "unsettled, below one that holds"
    assert len(world.proofs) == 1


def test_wrong_numbers_take_a_lever_out_before_it_is_timed():
    world = World(
        additive,
        numbers=lambda case: "violated" if case.configuration.attention == "sdpa" else "holds",
    )
    found, names = proved(world, "bf16", "sdpa", "cuda-graphs")
    assert names == ["bf16", "cuda-graphs"]
    assert world.proofs == [["base", "bf16", "bf16 True"]]
    (trial,) = [each for each in found.trials if each.lever == "sdpa"]
    assert (trial.stage, trial.verdict) == ("refused", "rejected")


def test_errors_that_add_up_take_the_top_off():
    def numbers(case):
        whole = case == configured(precision="bf16", attention="sdpa", cuda_graphs=True)
        return "violated" if whole else "holds"

    class AgainstTheBase(World):
        def verdict(self, claim):
            apart = msgspec.structs.replace(claim, candidate=claim.base)
            return super().verdict(claim if claim.base == BASE else apart)

    found, names = proved(AgainstTheBase(additive, numbers=numbers), "bf16", "sdpa", "cuda-graphs")
    assert names == ["bf16", "sdpa"]
    broken, whole = [trial for trial in found.trials if trial.lever == "composition"]
    assert (broken.verdict, name_of(broken.candidate)) == ("rejected", "bf16 sdpa True")
    assert (whole.verdict, name_of(whole.candidate)) == ("kept", "bf16 sdpa")


def test_a_base_that_does_not_run_is_not_timed():
    world = World(additive, runs=lambda case: case.configuration.precision == "bf16")
    found = Investigated(world)
    assert found.compose(BASE, levers("bf16", "cuda-graphs")) == configured(
        precision="bf16", cuda_graphs=True
    )
    assert world.proofs == [["bf16", "bf16 True"]]
    kept = {trial.lever for trial in found.trials if trial.verdict == "kept"}
    assert kept == {"bf16", "cuda-graphs"}


def test_a_case_that_fails_beside_the_others_is_taken_out():
    world = World(additive, dies=lambda case: case.configuration.attention == "sdpa")
    found, names = proved(world, "bf16", "sdpa", "cuda-graphs")
    assert names == ["bf16", "cuda-graphs"]
    (trial,) = [each for each in found.trials if each.lever == "sdpa"]
    assert trial.status == "crashed"


def test_levers_that_gain_alone_and_are_no_rung_are_confirmed_alone():
    def time_s(case):
        settings = case.configuration
        device_s = {"fp32": 10.0, "tf32": 5.0, "bf16": 2.0}[settings.precision]
        return device_s - 0.5 * (settings.attention == "sdpa")

    world = World(time_s, tells=lambda base, candidate: time_s(candidate) / time_s(base))
    found = Investigated(world)
    found.compose(BASE, levers("bf16", "tf32", "sdpa"))
    found.search.alone(BASE, levers("bf16", "tf32", "sdpa"))
    found.proof.prove_alone(BASE)
    assert world.proofs[-1] == ["base", "tf32", "sdpa"]
    confirmed = {
        trial.lever
        for trial in found.trials
        if trial.base == BASE and trial.stage == "confirmed" and trial.lever != "composition"
    }
    assert confirmed == {"bf16", "tf32", "sdpa"}
