"""Search and proof where a base does not run, a case fails, Ctrl-C comes or time runs out."""

import msgspec
import pytest

from peakward.lab.measure.messages import TurnsTimed
from peakward.tune.trials import failed_beside

from .test_proof import additive, levers, proved
from .world import BASE, Investigated, World, name_of, two_bottlenecks


def fits_in_16_bits(case):
    return case.configuration.precision in ("bf16-mixed", "bf16")


def by_precision(case):
    return {"fp32": 10.0, "tf32": 5.0, "bf16-mixed": 4.0, "bf16": 2.0}[case.configuration.precision]


def test_a_lever_in_the_place_of_what_made_the_base_run_leaves_the_base_untimed():
    world = World(by_precision, runs=fits_in_16_bits)
    best = Investigated(world).compose(BASE, levers("bf16-mixed", "bf16"))
    assert name_of(best) == "bf16"
    assert world.proofs == []


def test_what_made_the_base_run_stays_when_a_case_above_it_fails():
    world = World(
        additive, runs=fits_in_16_bits, dies=lambda case: case.configuration.attention == "sdpa"
    )
    found = Investigated(world)
    stack = found.search.compose(BASE, levers("bf16", "sdpa"), base_runs=False)
    held = found.proof.prove(stack)
    assert [each.name for each in held.levers] == ["bf16"]
    assert [trial.lever for trial in found.trials if trial.verdict == "kept"] == ["bf16"]


def test_ladders_on_a_base_that_does_not_run_are_compared_by_their_lowest_case_that_does():
    """sdpa cannot be settled, and without it below them graphs are slow."""

    def time_s(case):
        settings = case.configuration
        return additive(case) + (settings.cuda_graphs and settings.attention == "naive")

    world = World(time_s, runs=fits_in_16_bits, settles=lambda name, base: name != "sdpa")
    best = Investigated(world).compose(BASE, levers("bf16", "sdpa", "cuda-graphs"))
    assert name_of(best) == "bf16 sdpa True"


def test_numbers_of_a_composition_are_held_to_a_base_that_does_not_run():
    checked = []

    class Seen(World):
        def verdict(self, claim):
            checked.append((name_of(claim.base), name_of(claim.candidate)))
            return super().verdict(claim)

    Investigated(Seen(additive, runs=fits_in_16_bits)).compose(BASE, levers("bf16", "sdpa"))
    assert ("base", "bf16 sdpa") in checked


@pytest.mark.parametrize("at", [0, -1])
def test_ctrl_c_in_any_turn_of_a_proof_is_an_interruption(at):
    class Stopped(World):
        def confirm(self, cases, comparisons, *, affords_more):
            timed = TurnsTimed(status="crashed", reason="interrupted by Ctrl-C", ended_by="user")
            return tuple(failed_beside(each, "here", cases[at], timed) for each in comparisons)

    found, names = proved(Stopped(additive), "bf16", "sdpa")
    assert names == []
    assert all(trial.interrupted for trial in found.trials)
    assert found.skipped


def test_a_rival_that_lost_to_a_lever_whose_numbers_broke_is_found():
    def numbers(case):
        return "violated" if case.configuration.precision == "bf16" else "holds"

    world = World(two_bottlenecks, numbers=numbers)
    best = Investigated(world).compose(BASE, levers("bf16", "cuda-graphs", "tf32"))
    assert name_of(best) == "tf32"


def test_what_was_proved_after_all_is_not_named_as_left_undone():
    """Two cases in two processes and their checks take 9 s, three in three and theirs 16 s."""
    found, names = proved(World(additive), "bf16", "sdpa", total_s=12.0, reserve_s=5.0)
    assert names == ["bf16 + sdpa"]
    assert found.skipped == []


def test_what_was_screened_alone_after_all_is_not_named_as_left_undone():
    found = Investigated(World(two_bottlenecks), total_s=12.0)
    assert found.search.compose(BASE, levers("bf16"), base_runs=True).levers == ()
    assert found.skipped == ["screening bf16"]
    found.ledger.reserve_s = -1e9  # As much time as it takes.
    found.search.alone(BASE, levers("bf16"))
    assert found.skipped == []


def test_the_trials_of_the_ladder_that_is_held_are_the_ones_entered_last():
    """A second proof, less sure, ends in the same case as the first."""

    class Changing(World):
        def confirmed_as(self, comparison, cases):
            trial = super().confirmed_as(comparison, cases)
            first, at_top = len(self.proofs) == 1, comparison.candidate == cases[-1]
            unsure = comparison.name == "sdpa" or (
                not first and (comparison.name == "bf16" or at_top)
            )
            return msgspec.structs.replace(trial, verdict="inconclusive") if unsure else trial

    found, names = proved(Changing(additive), "bf16", "sdpa", "cuda-graphs")
    assert names == ["bf16", "sdpa", "cuda-graphs"]
    verdicts = {(trial.lever, name_of(trial.base)): trial.verdict for trial in found.trials}
    assert verdicts["bf16", "base"] == verdicts["composition", "base"] == "kept"


def test_checks_of_a_mended_ladder_are_in_its_budget():
    class Slow(World):
        def check(self, claims):
            self.now_s += len(claims)
            return super().check(claims)

    slow = Slow(lambda case: additive(case) + 1.0 * (case.configuration.attention == "sdpa"))
    # Five claims of 1 s and a proof of five cases, 18 s, leave too little for another.
    proved(slow, "bf16", "sdpa", "cuda-graphs", "compile", total_s=31.0)
    assert slow.now_s <= 31.0
    assert len(slow.proofs) == 1


def test_a_composition_whose_numbers_could_not_be_checked_is_not_kept():
    class Whole(World):
        def verdict(self, claim):
            whole = claim.base == BASE and name_of(claim.candidate) == "bf16 sdpa"
            self.numbers = lambda case: "not computed" if whole else "holds"
            return super().verdict(claim)

    found, names = proved(Whole(additive), "bf16", "sdpa")
    assert names == ["bf16", "sdpa"], "each of them was"
    assert found.trials[-1].lever == "composition"
    assert found.trials[-1].verdict == "inconclusive"


def test_a_lever_that_fails_alone_leaves_the_others_their_proof():
    def time_s(case):
        return by_precision(case) - 0.5 * (case.configuration.attention == "sdpa")

    world = World(time_s, dies=lambda case: case.configuration.precision == "tf32")
    found = Investigated(world)
    found.search.alone(BASE, levers("bf16", "tf32", "sdpa"))
    best = found.proof.prove_alone(BASE)
    assert [each.name for each in best.levers] == ["bf16"]
    verdicts = {trial.lever: (trial.status, trial.verdict) for trial in found.trials}
    assert verdicts == {
        "bf16": ("ok", "kept"),
        "sdpa": ("ok", "kept"),
        "tf32": ("crashed", "inconclusive"),
    }
