"""Ranks of a job whose clocks and delays are known."""

from dataclasses import replace

import numpy as np
import pytest

from peakward.records.errors import PeakwardError
from peakward.traces.collectives import RankTrace
from peakward.traces.ranks import compare
from peakward.traces.table import JobRank

from .handmade import Gpu, table


def rank(number, collectives, *, compute=(), clock_ns=0, world_size=2):
    """A trace with these collectives and computing kernels, on a clock that is `clock_ns` ahead."""
    spans = [(start, end, name) for name, start, end in collectives]
    rows = [Gpu(start + clock_ns, end + clock_ns, name) for start, end, name in spans]
    rows += [Gpu(start + clock_ns, end + clock_ns, "gemm") for start, end in compute]
    made = replace(table(rows, []), job=JobRank(number, world_size))
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
    with pytest.raises(PeakwardError, match="different ranks, got by hand and by hand of rank 0"):
        compare([rank(0, []), rank(0, [])])
    with pytest.raises(PeakwardError, match="one job, got world sizes 2, 4"):
        compare([rank(0, []), rank(1, [], world_size=4)])


def test_ranks_come_in_their_order_and_those_without_a_file_are_told():
    found = compare([rank(each, [], compute=[(0, 9 + each)], world_size=8) for each in (5, 0, 3)])
    assert [(each.rank, each.compute_ns) for each in found.ranks] == [(0, 9), (3, 12), (5, 14)]
    assert found.absent == (1, 2, 4, 6, 7)


def test_files_that_do_not_say_their_rank_keep_their_order_but_are_not_mixed_with_others():
    silent = [
        RankTrace(replace(each.table, job=None), each.communication)
        for each in (rank(1, [], compute=[(0, 5)]), rank(0, [], compute=[(0, 7)]))
    ]
    assert [each.compute_ns for each in compare(silent).ranks] == [5, 7]
    with pytest.raises(
        PeakwardError, match="files that all say their rank, got by hand, which does not"
    ):
        compare([silent[0], rank(1, [])])


def test_clocks_that_no_collective_ties_have_no_offset():
    found = compare([rank(0, [], compute=[(0, 30)]), rank(1, [], compute=[(0, 10)], clock_ns=9)])
    assert [each.offset_ns for each in found.ranks] == [None, None]


MS = 1_000_000


def eight(late_ms, *, late=3, jitter_ms=1.0):
    """Four steps of eight ranks, each with a clock of its own: 50 to 58 ms of compute, then an all-reduce
    of 5 ms; in the second the late one begins so much later than the slowest of the others."""
    spans = {each: [] for each in range(8)}
    work = {each: [] for each in range(8)}
    for step in range(4):
        begin = step * 200 * MS
        own = {each: round((50 + jitter_ms * ((each + step) % 8)) * MS) for each in range(8)}
        joins = {each: begin + own[each] for each in range(8)}
        if step == 1:
            joins[late] = max(joins.values()) + round(late_ms * MS)
        ends = max(joins.values()) + 5 * MS
        for each in range(8):
            work[each].append((begin, begin + own[each]))
            spans[each].append(("nccl_all_reduce", joins[each], ends))
    return [
        rank(each, spans[each], compute=work[each], clock_ns=each * 10**15, world_size=8)
        for each in range(8)
    ]


def test_one_that_is_late_once_is_named_with_what_the_others_wait():
    found = compare(eight(31))
    assert found.late == 3
    waits = sorted(each.waited_for_late_ns / MS for each in found.ranks)
    assert (waits[0], waits[1], waits[-1]) == (0, 31, 38)
    late = found.ranks[3]
    others = [each for each in found.ranks if each is not late]
    # Idle from its compute to when it joined.
    assert late.idle_ns - max(each.idle_ns for each in others) >= 20 * MS
    assert found.straggler is None


def test_ranks_that_take_turns_have_none_that_is_late():
    assert compare(eight(0, jitter_ms=4)).late is None
    assert compare(eight(2)).late is None
