"""The ladder that a search climbs, by screenings of known outcome."""

import pytest

from peakward.catalogue.levers import lever

from .world import BASE, Investigated, World, configured, two_bottlenecks


def levers(*names):
    return [lever(name) for name in names]


def climbed(world, *names, base=BASE, **fields):
    found = Investigated(world, **fields)
    ladder = found.search.climb(base, levers(*names))
    return found, [each.name for each in ladder.levers]


def test_a_lever_hidden_behind_another_bottleneck_is_found_on_top():
    _, names = climbed(World(two_bottlenecks), "cuda-graphs", "tf32", "bf16")
    assert names == ["bf16", "cuda-graphs"]


def test_a_stronger_lever_on_the_same_field_replaces_another_once_it_shows():
    """Both precisions leave the launches to be waited for; tf32 was a hair ahead."""

    def time_s(case):
        settings = case.configuration
        device_s = {"fp32": 10.0, "tf32": 3.0, "bf16": 2.0}[settings.precision]
        launches_s = 0.5 if settings.cuda_graphs else 4.0
        return max(device_s, launches_s + (0.1 if settings.precision == "bf16" else 0.0))

    found, names = climbed(World(time_s), "bf16", "tf32", "cuda-graphs")
    assert names == ["cuda-graphs", "bf16"], "tf32's rung changes nothing any more"
    tried = [trial.lever for trial in found.trials]
    assert tried == ["bf16", "cuda-graphs", "tf32", "bf16", "cuda-graphs", "bf16"]


def test_a_lever_that_gained_nothing_comes_again_once_another_gained():
    """The fused optimiser shows only when launches no longer hide it."""

    def time_s(case):
        settings = case.configuration
        update_s = 0.5 if settings.optimizer == "adamw-fused" else 1.5
        if settings.precision == "fp32":
            return 10.0 + (0.3 if settings.optimizer == "adamw-foreach" else 0.0)
        return 1.0 + update_s if settings.cuda_graphs else 8.0

    _, names = climbed(World(time_s), "fused-optimizer", "cuda-graphs", "bf16")
    assert names == ["bf16", "cuda-graphs", "fused-optimizer"]


def test_what_lost_twice_to_a_lever_that_sets_the_same_is_given_up():
    def time_s(case):
        settings = case.configuration
        step_s = {"fp32": 10.0, "tf32": 8.0, "bf16": 2.0}[settings.precision]
        step_s += 0.5 * (settings.attention == "naive") + 0.4 * (settings.compile == "none")
        return (
            step_s + 0.3 * (not settings.cuda_graphs) + 0.2 * (settings.optimizer != "adamw-fused")
        )

    world = World(time_s)
    found, names = climbed(
        world, "bf16", "tf32", "sdpa", "compile", "cuda-graphs", "fused-optimizer"
    )
    assert set(names) == {"bf16", "sdpa", "compile", "cuda-graphs", "fused-optimizer"}
    assert [trial.lever for trial in found.trials].count("tf32") == 3, "alone and twice on top"


def test_a_lever_that_loses_is_rejected_with_its_number():
    world = World(lambda case: 3.0 if case.configuration.attention == "sdpa" else 2.0)
    found, names = climbed(world, "sdpa")
    assert names == []
    (trial,) = found.trials
    assert (trial.verdict, trial.time_ratio.estimate) == ("rejected", 1.5)


def test_wrong_numbers_reject_a_fast_lever():
    found, names = climbed(World(two_bottlenecks, numbers=lambda case: "violated"), "bf16")
    assert names == []
    (trial,) = found.trials
    assert trial.verdict == "rejected"
    assert "not approximate as declared" in trial.reason


def test_numbers_that_could_not_be_checked_climb_nothing():
    found, names = climbed(World(two_bottlenecks, numbers=lambda case: "not computed"), "bf16")
    assert names == []
    (trial,) = found.trials
    assert trial.verdict == "inconclusive"
    assert "could not be checked" in trial.reason


def test_a_rescue_with_wrong_numbers_is_rejected():
    world = World(
        two_bottlenecks,
        runs=lambda case: case.configuration.precision == "bf16",
        numbers=lambda case: "violated",
    )
    found, names = climbed(world, "bf16")
    assert names == []
    assert found.trials[0].verdict == "rejected"


def test_what_runs_where_the_base_does_not_is_the_first_rung_even_if_it_saves_only_memory():
    world = World(two_bottlenecks, runs=lambda case: case.configuration.checkpointing != "none")
    _, names = climbed(world, "bf16", "checkpointing")
    assert names == ["checkpointing", "bf16"]


def test_a_memory_lever_stays_off_a_ladder_whose_base_runs():
    _, names = climbed(World(lambda case: 1.0), "checkpointing")
    assert names == []


def test_a_lever_that_cannot_apply_is_refused_until_it_can():
    def obstacle(pulled, case):
        blocked = pulled.name == "sdpa-cudnn" and case.configuration.precision == "fp32"
        return "needs 16 bits" if blocked else None

    def time_s(case):
        quick = 0.5 if case.configuration.attention == "sdpa-cudnn" else 1.0
        return two_bottlenecks(case) + quick

    found, names = climbed(World(time_s), "sdpa-cudnn", "bf16", obstacle=obstacle)
    assert names == ["bf16", "sdpa-cudnn"]
    refused = [trial.reason for trial in found.trials if trial.stage == "refused"]
    assert refused == ["needs 16 bits"]


def test_a_lever_that_the_base_already_has_is_not_tried():
    found, names = climbed(World(two_bottlenecks), "bf16", base=configured(precision="bf16"))
    assert (found.trials, names) == ([], [])


@pytest.mark.parametrize(("total_s", "undone"), [(0.0, {"screening bf16"}), (3.0, set())])
def test_what_the_budget_does_not_allow_is_named(total_s, undone):
    found, _ = climbed(World(two_bottlenecks), "bf16", total_s=total_s)
    assert set(found.skipped) == undone


def test_what_it_screens_leaves_the_time_to_prove_the_ladder():
    """Three cases of 1 s in each of three processes that start in 1 s: 12 s, and 2.5 s before it."""
    found, names = climbed(World(two_bottlenecks), "bf16", "cuda-graphs", total_s=12.0)
    assert names == ["bf16"]
    assert set(found.skipped) == {"screening cuda-graphs on top"}
    _, names = climbed(World(two_bottlenecks), "bf16", "cuda-graphs", total_s=14.5)
    assert names == ["bf16", "cuda-graphs"]
