"""Ranks whose own work lasts longer, told from simulated noise."""

import random

import pytest

from peakward.stats.stragglers import LEAST_JOBS, LEAST_STEPS, UNLIKELY, stragglers

OWN_S = (0.110, 0.110, 0.200, 0.250, 0.130)
"""The own work of a step by layout: `fully_shard` takes the host longer."""


def jobs(drawn, n_ranks, n_jobs, *, noise, between=0.0, odd=0.0, slow=(), factor=1.0, wait_s=0.0):
    """Jobs of six steps: noise of each step, of all steps of a rank in a job, and a share `odd` of ranks that
    take twice as long for a whole job."""
    for job in range(n_jobs):
        group = {}
        for rank in range(n_ranks):
            own_s = OWN_S[job % len(OWN_S)] * drawn.lognormvariate(0, between)
            own_s *= 2 if drawn.random() < odd else 1
            if rank in slow:
                own_s = own_s * factor + wait_s
            group[rank] = tuple(own_s * drawn.lognormvariate(0, noise) for _ in range(6))
        yield group


@pytest.mark.parametrize("n_ranks", [2, 4, 8])
@pytest.mark.parametrize("kind", [{"factor": 1.3}, {"wait_s": 0.03}])
def test_a_slow_rank_is_named(n_ranks, kind):
    drawn = random.Random(0)
    (found,) = stragglers(jobs(drawn, n_ranks, 5, noise=0.03, slow=(1,), **kind))
    assert found.rank == 1 and found.n_jobs == 5
    assert found.longer == pytest.approx(0.3 if "factor" in kind else 0.03 / 0.13, rel=0.2)


def test_two_slow_ranks_of_four_are_both_named_the_slower_first():
    drawn = random.Random(0)
    given = list(jobs(drawn, 4, 5, noise=0.02, slow=(1, 3), factor=1.3))
    given = [{**each, 3: tuple(1.2 * one for one in each[3])} for each in given]
    assert [each.rank for each in stragglers(given)] == [3, 1]


@pytest.mark.parametrize("n_ranks", [2, 4, 8])
@pytest.mark.parametrize(
    "noise",
    [
        {"noise": 0.02},
        {"noise": 0.1, "between": 0.05},
        {"noise": 0.3, "between": 0.3},
        {"noise": 0.1, "odd": 0.1},
    ],
)
def test_equal_ranks_are_named_as_seldom_as_stated(n_ranks, noise):
    """As on a machine whose ranks share busy cores."""
    drawn, n_runs = random.Random(n_ranks), 200
    named = sum(bool(stragglers(jobs(drawn, n_ranks, 5, **noise))) for _ in range(n_runs))
    assert named <= 3 * UNLIKELY * n_runs


def test_a_disturbance_of_one_job_is_no_straggler():
    given = list(jobs(random.Random(0), 4, 6, noise=0.02))
    given[2] = {**given[2], 3: tuple(3 * each for each in given[2][3])}
    assert stragglers(given) == ()


def test_too_little_is_no_verdict():
    given = list(jobs(random.Random(0), 2, 5, noise=0.01, slow=(0,), factor=2.0))
    assert [each.rank for each in stragglers(given)] == [0]
    assert stragglers(given[: LEAST_JOBS - 1]) == ()
    assert (
        stragglers({rank: own[: LEAST_STEPS - 1] for rank, own in each.items()} for each in given)
        == ()
    )
    assert stragglers({0: each[0]} for each in given) == ()


def test_a_rank_that_is_a_little_longer_is_not_worth_a_name():
    assert stragglers(jobs(random.Random(0), 4, 8, noise=0.001, slow=(2,), factor=1.02)) == ()
