"""Which kernels of several ranks are one collective, on clocks that are apart by a known time."""

from dataclasses import replace

import numpy as np

from peakward.traces.collectives import RankTrace, matched
from peakward.traces.ranks import compare
from peakward.traces.table import NONE, JobRank

from .handmade import Gpu, table

DECADES = 1_700_000_000_000_000_123


def rank(number, collectives, *, clock_ns=0, size=4):
    """Each is (description or None, start, end)."""
    rows = [
        Gpu(start + clock_ns, end + clock_ns, "nccl_all", collective=told)
        for told, start, end in collectives
    ]
    made = replace(table(rows, []), job=JobRank(number, size))
    return RankTrace(made, np.full(len(rows), True))


def told(kind, *, group=0, number=None, n=8):
    return f'"{kind}" {n} "Float" "{group}" "[0, 1]" {"null" if number is None else number}'


def test_only_the_ranks_of_a_group_wait_for_one_another():
    ends = [(100 * i, 100 * i + 90) for i in range(3)]
    pairs = [
        rank(at, [(told("allreduce", group=at // 2), start + 10 * at, end) for start, end in ends])
        for at in range(4)
    ]
    found = compare(pairs)
    assert [each.waited_ns for each in found.ranks] == [30, 0, 0, 0], "nothing ties ranks 2 and 3"
    assert [each.offset_ns for each in found.ranks] == [0, 0, None, None]
    assert (found.n_collectives, found.n_unmatched) == (3, 6)


def test_clocks_are_tied_from_group_to_group_to_the_nanosecond():
    clocks = (0, 5, DECADES, -77)
    spans = {0: [("a", 0, 10)], 1: [("a", 4, 10), ("b", 20, 31)], 2: [("b", 20, 31), ("c", 40, 55)],
             3: [("c", 50, 55)]}  # fmt: skip
    ranks = [
        rank(
            at,
            [(told("allreduce", group=g), s, e) for g, s, e in spans[at]],
            clock_ns=clocks[at] + 100,
        )
        for at in range(4)
    ]
    found = compare(ranks)
    assert [each.offset_ns for each in found.ranks] == [-each for each in clocks]
    assert [each.waited_ns for each in found.ranks] == [4, 0, 10, 0]


def test_numbers_match_recordings_of_different_lengths():
    numbered = [(told("allreduce", number=n), 100 * n, 100 * n + 90) for n in range(5)]
    found = matched([rank(0, numbered[:4]), rank(1, numbered[1:])])
    assert found.row.tolist() == [[1, 2, 3], [0, 1, 2]]
    assert found.n_unmatched == 2
    unnumbered = [(told("allreduce"), start, end) for _, start, end in numbered]
    found = matched([rank(0, unnumbered[:4]), rank(1, unnumbered[1:]), rank(2, unnumbered[:3])])
    assert found.row.shape[1] == 0, "which is the first of each cannot be told"


def test_sizes_tell_collectives_of_one_kernel_apart():
    one = [(told("allreduce", n=8), 0, 10), (told("allreduce", n=64), 20, 40)]
    other = [(told("allreduce", n=64), 5, 40), (told("allreduce", n=8), 50, 60)]
    found = matched([rank(0, one), rank(1, other)])
    assert sorted(found.row.T.tolist()) == [[0, 1], [1, 0]]


def test_what_is_sent_is_no_collective_and_one_without_words_is_none_with():
    sent = [(told("send"), 0, 10)]
    assert matched([rank(0, sent), rank(1, sent)]).n_unmatched == 2
    mixed = matched([rank(0, [(None, 0, 10)]), rank(1, [(told("allreduce"), 0, 10)])])
    assert mixed.row.shape[1] == 0


def test_a_rank_without_any_has_no_part():
    found = matched([rank(0, []), rank(1, [(told("allreduce"), 0, 10)]), rank(2, [])])
    assert found.offset_ns == (None, None, None)
    assert not np.any(found.row != NONE)
