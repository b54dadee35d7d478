"""A job whose late rank has a known cause."""

from dataclasses import replace

import numpy as np
import pytest

from peakward.records.profile import Excess
from peakward.traces.collectives import RankTrace
from peakward.traces.ranks import compare
from peakward.traces.table import HostKind, JobRank

from .handmade import Gpu, Host, table

MS = 1_000_000
STEP = 100 * MS


def trace(number, *, gemm_ms=40, stall_ms=0, host=None, hidden_ms=0, joins_ms=60):
    """Ten steps: a product, a stall of the host, and an all-reduce from then to 65 ms of the step. A
    kernel of `hidden_ms` runs beside the all-reduce."""
    gpu, calls = [], []
    for step in range(10):
        begin = step * STEP
        products, joins = begin + gemm_ms * MS, begin + joins_ms * MS
        gpu.append(Gpu(begin, products, "gemm"))
        gpu.append(Gpu(joins, begin + 65 * MS, "ncclDevKernel_AllReduce", stream=8))
        if hidden_ms:
            gpu.append(Gpu(joins, joins + hidden_ms * MS, "relu"))
        if stall_ms:
            calls.append(Host(products, products + stall_ms * MS, host, kind=HostKind.RANGE))
        calls.append(Host(begin, begin + STEP, f"ProfilerStep#{step}", kind=HostKind.RANGE))
    made = replace(table(gpu, calls), job=JobRank(number, 3))
    is_nccl = np.array([name.startswith("nccl") for name in made.names])[made.gpu.name]
    return RankTrace(made, is_nccl)


def quick(number):
    return trace(number, joins_ms=41)


def test_more_work_is_named():
    found = compare([quick(0), trace(1, gemm_ms=58, joins_ms=59), quick(2)])
    assert (found.late, found.straggler) == (1, 1)
    assert found.ranks[1].behind_ns == 10 * 18 * MS
    assert found.late_by == (Excess(kind="work", name="gemm", ns=10 * 18 * MS),)
    assert found.imbalance == pytest.approx(58 / 46)


def test_a_host_that_stalls_is_named():
    found = compare([quick(0), quick(1), trace(2, stall_ms=20, host="DataLoader.__next__")])
    # From 40 to 60 ms of a step; the others are idle for one ms there. Before the second collective and
    # those after it all are idle from 65 to 100 ms as well.
    assert found.late_by == (Excess(kind="idle", name="DataLoader.__next__", ns=10 * 19 * MS),)


def test_a_host_that_shows_nothing_is_not_named():
    found = compare([quick(0), quick(1), trace(2)])
    assert found.late_by == (Excess(kind="idle", name=None, ns=10 * 19 * MS),)


def test_equal_ranks_have_no_cause():
    assert compare([quick(0), quick(1), quick(2)]).late_by == ()


def test_what_runs_beside_communication_hides_it():
    found = compare([quick(0), trace(1, hidden_ms=3)])
    assert [each.exposed_ns for each in found.ranks] == [10 * 24 * MS, 10 * 2 * MS]
