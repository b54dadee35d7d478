"""Ranks of a job whose clocks and delays are known."""

from dataclasses import replace

import numpy as np
import pytest

from peakward.records.errors import PeakwardError
from peakward.traces.ranks import RankTrace, compare
from peakward.traces.table import Job

from .handmade import Gpu, table


def rank(number, collectives, *, compute=(), clock_ns=0, world_size=2):
    """A trace with these collectives and computing kernels, on a clock that is `clock_ns` ahead."""
    spans = [(start, end, name) for name, start, end in collectives]
    rows = [Gpu(start + clock_ns, end + clock_ns, name) for start, end, name in spans]
    rows += [Gpu(start + clock_ns, end + clock_ns, "gemm") for start, end in compute]
    made = replace(table(rows, []), job=Job(number, world_size))
    is_nccl = np.array(["nccl" in name for name in made.names])[made.gpu.name]
    return RankTrace(made, is_nccl)


def test_the_last_to_begin_is_waited_for():
    quick = rank(0, [("nccl_a", 0, 110), ("nccl_a", 200, 310)])
    late = rank(1, [("nccl_a", 100, 110), ("nccl_a", 250, 310)], clock_ns=10**9)
    found = compare([quick, late])
    assert [each.offset_ns for each in found.ranks] == [0, -(10**9)]
    assert [each.waited_ns for each in found.ranks] == [150, 0]
    assert [each.n_last for each in found.ranks] == [0, 2]
    assert found.straggler is None, "two collectives prove nothing"


def test_one_that_is_always_last_is_a_straggler():
    ends = [100 * i + 90 for i in range(40)]
    quick = rank(0, [("nccl_a", end - 80, end) for end in ends])
    late = rank(1, [("nccl_a", end - 10, end) for end in ends])
    assert compare([quick, late]).straggler == 1
    turns = [
        rank(i, [("nccl_a", e - 80 + 70 * ((e // 100 + i) % 2), e) for e in ends]) for i in (0, 1)
    ]
    assert compare(turns).straggler is None


def test_names_that_ranks_have_differently_often_are_left_out():
    one = rank(0, [("nccl_a", 0, 10), ("nccl_b", 20, 30)])
    two = rank(1, [("nccl_a", 0, 10)])
    found = compare([one, two])
    assert (found.n_collectives, found.n_unmatched) == (1, 1)


def test_ranks_without_collectives_still_show_their_imbalance():
    found = compare([rank(0, [], compute=[(0, 30)]), rank(1, [], compute=[(0, 10)])])
    assert found.imbalance == pytest.approx(1.5)
    assert (found.n_collectives, found.straggler) == (0, None)


def test_one_rank_twice_and_two_jobs_are_refused():
    with pytest.raises(PeakwardError, match="different ranks, got 0, 0"):
        compare([rank(0, []), rank(0, [])])
    with pytest.raises(PeakwardError, match="one job, got world sizes 2, 4"):
        compare([rank(0, []), rank(1, [], world_size=4)])
