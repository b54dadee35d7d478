"""When a rank computes, and when it waits."""

import pytest

from peakward.prediction.parallel.schedule import (
    StageSeconds,
    Work,
    buckets,
    data_pass,
    n_under_way,
    order,
    pipeline_s,
)


def even(pp, per_rank):
    return (StageSeconds(1.0 / per_rank, 2.0 / per_rank),) * (pp * per_rank)


@pytest.mark.parametrize(("pp", "n"), [(2, 2), (4, 8), (8, 16), (4, 7), (16, 64)])
def test_1f1b_of_equal_stages_waits_for_all_stages_but_one(pp, n):
    """Narayanan et al. 2021, section 2.2: a bubble of (p - 1) micro-batches."""
    assert pipeline_s(even(pp, 1), pp, n, "1f1b", 0.0) == pytest.approx(3 * (n + pp - 1))
    assert pipeline_s(even(pp, 1), pp, n, "gpipe", 0.0) == pytest.approx(3 * (n + pp - 1))


@pytest.mark.parametrize(("pp", "per_rank", "n"), [(4, 2, 8), (8, 2, 32), (4, 4, 16)])
def test_stages_in_turn_divide_the_bubble(pp, per_rank, n):
    """The same, section 2.2.2."""
    found = pipeline_s(even(pp, per_rank), pp, n, "interleaved", 0.0)
    assert found == pytest.approx(3 * n + 3 * (pp - 1) / per_rank)


def test_no_rank_waits_less_than_nothing_where_stages_are_uneven():
    """126 blocks over 16 stages of 8 ranks: the second round of micro-batches begins in the bubble of the
    first, and every later one takes what the busiest rank computes."""
    stages = tuple(StageSeconds(8.0 - (at > 13), 2 * (8.0 - (at > 13))) for at in range(16))
    busiest = max(sum(stages[at]) + sum(stages[at + 8]) for at in range(8))
    for n in (8, 16, 24, 128, 1024):
        assert pipeline_s(stages, 8, n, "interleaved", 0.0) >= n * busiest
    later = pipeline_s(stages, 8, 128, "interleaved", 0.0) - 128 * busiest
    assert later == pytest.approx(pipeline_s(stages, 8, 24, "interleaved", 0.0) - 24 * busiest)


def test_further_rounds_take_as_long_as_the_third():
    """Extrapolated beside simulated pass by pass, of stages that differ."""
    stages = tuple(StageSeconds(1.0 + at, 2.0 + at % 3) for at in range(8))
    for schedule, per_rank in (("1f1b", 1), ("interleaved", 2)):
        own = stages[: 4 * per_rank]
        more = pipeline_s(own, 4, 32, schedule, 0.1) - pipeline_s(own, 4, 28, schedule, 0.1)
        step = pipeline_s(own, 4, 12, schedule, 0.1) - pipeline_s(own, 4, 8, schedule, 0.1)
        assert more == pytest.approx(step)
    slowest = max(sum(each) for each in stages[:4])
    assert pipeline_s(stages[:4], 4, 64, "1f1b", 0.0) == pytest.approx(
        pipeline_s(stages[:4], 4, 60, "1f1b", 0.0) + 4 * slowest
    )


def test_transfers_between_stages_lengthen_the_step():
    plain, hopping = (pipeline_s(even(4, 1), 4, 8, "1f1b", hop_s) for hop_s in (0.0, 0.5))
    assert hopping > plain + 2 * 3 * 0.5


@pytest.mark.parametrize(("pp", "per_rank", "n"), [(2, 2, 4), (4, 2, 8), (4, 2, 10), (4, 3, 12)])
def test_orders_are_torch_s(pp, per_rank, n):
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    kind = schedules.ScheduleInterleaved1F1B
    theirs = object.__new__(kind)
    theirs.n_local_stages, theirs.pp_group_size, theirs._n_microbatches = per_rank, pp, n
    theirs.number_of_rounds = max(1, n // pp)
    theirs.microbatches_per_round = n // theirs.number_of_rounds
    for rank in range(pp):
        said = [
            (each.computation_type is schedules.FORWARD, each.stage_index, each.microbatch_index)
            for each in theirs._calculate_single_rank_operations(rank)
            if each is not None
        ]
        assert order(rank, pp, per_rank, n, "interleaved") == said


def test_the_first_rank_has_most_under_way():
    assert [n_under_way(rank, 4, 1, 8, "1f1b") for rank in range(4)] == [4, 3, 2, 1]
    assert n_under_way(0, 4, 1, 8, "gpipe") == 8
    assert n_under_way(0, 4, 2, 8, "interleaved") == 11


# The two queues of a stage.


def test_gathering_hides_behind_the_block_before():
    end_s, waited_s = data_pass([Work(1.0, 0.5)] * 4, 0.0, is_backward=False)
    assert (end_s, waited_s) == (4.5, 0.5)  # Only the first block's is in sight.


def test_gathering_that_takes_longer_than_a_block_sets_the_pace():
    end_s, _ = data_pass([Work(1.0, 2.0)] * 4, 0.0, is_backward=False)
    assert end_s == 4 * 2.0 + 1.0


def test_the_last_reduction_has_nothing_to_hide_behind():
    end_s, waited_s = data_pass([Work(1.0, 0.25, 0.25)] * 4, 0.0, is_backward=True)
    assert (end_s, waited_s) == (4.5, 0.5)


def test_what_runs_beside_arithmetic_slows_it():
    end_s, waited_s = data_pass([Work(1.0, 0.5)] * 4, 0.6, is_backward=False)
    assert waited_s == pytest.approx(0.5 + 3 * 0.6 * 0.5)
    assert end_s == pytest.approx(4.0 + waited_s)


def test_buckets_are_sent_once_they_are_full():
    works = [Work(1.0, reduce_s=1.0)] * 4
    assert [each.reduce_s for each in buckets(works, [50] * 4, 100)] == [0, 2, 0, 2]
    assert [each.reduce_s for each in buckets(works, [50] * 4, 150)] == [0, 0, 3, 1]
    assert [each.reduce_s for each in buckets(works, [50] * 4, 0)] == [1, 1, 1, 1]
