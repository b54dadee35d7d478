"""Groups of GPU work by name, category and phase, with their number, time and share."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.grouping import group
from peakward.traces.phase_names import PhaseCode
from peakward.traces.phases import phases
from peakward.traces.table import GpuKind

from .plain_readers import real


def ints(*values):
    return np.array(values, dtype=np.int64)


def test_one_group_by_hand():
    groups = group(ints(2, 4, 4, 4, 5, 5, 7, 9), [np.zeros(8, np.int32)])
    assert groups.keys.tolist() == [[0]]
    assert groups.instances.tolist() == [8]
    assert groups.total_ns.tolist() == [40]
    assert groups.share.tolist() == [1.0]
    assert groups.mean_ns.tolist() == [5.0]
    assert groups.median_ns.tolist() == [4.5]
    assert (groups.min_ns.tolist(), groups.max_ns.tolist()) == ([2], [9])
    assert groups.std_ns.tolist() == [2.0]


def test_groups_by_two_keys_longest_first_ties_by_keys():
    name, phase = ints(3, 1, 3, 1, 2), np.array([0, 1, 1, 1, 0], dtype=np.uint8)
    groups = group(ints(10, 1, 50, 9, 10), [name, phase])
    assert groups.keys.tolist() == [[3, 1], [1, 1], [2, 0], [3, 0]]
    assert groups.total_ns.tolist() == [50, 10, 10, 10]


@given(
    rows=st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 3), st.integers(0, 2))),
)
def test_statistics_agree_with_pythons(rows):
    duration = ints(*(row[0] for row in rows))
    groups = group(duration, [ints(*(row[1] for row in rows)), ints(*(row[2] for row in rows))])
    assert groups.total_ns.sum() == sum(row[0] for row in rows)
    assert len(groups) == len({row[1:] for row in rows})
    for i in range(len(groups)):
        mine = [row[0] for row in rows if row[1:] == tuple(groups.keys[i])]
        assert groups.instances[i] == len(mine)
        assert groups.total_ns[i] == sum(mine)
        assert groups.mean_ns[i] == pytest.approx(statistics.fmean(mine))
        assert groups.median_ns[i] == statistics.median(mine)
        assert (groups.min_ns[i], groups.max_ns[i]) == (min(mine), max(mine))
        assert groups.std_ns[i] == pytest.approx(statistics.pstdev(mine), abs=1e-3)
    assert sorted(groups.total_ns, reverse=True) == groups.total_ns.tolist()


def test_totals_beyond_what_a_float_holds_stay_exact():
    groups = group(ints(2**53, 1), [ints(0, 0)])
    assert groups.total_ns.tolist() == [2**53 + 1]


def test_nothing_ran():
    groups = group(ints(), [ints(), ints()])
    assert len(groups) == 0


def test_kernels_of_no_length_have_no_share():
    assert group(ints(0, 0), [ints(1, 2)]).share.tolist() == [0.0, 0.0]


def test_kernels_of_a_real_trace():
    table, launches = real("a100_ddp_nccl_ns.json.gz")
    kernels = table.gpu.kind == GpuKind.KERNEL
    duration = table.gpu.duration_ns[kernels]
    groups = group(duration, [table.gpu.name[kernels], phases(table, launches).code[kernels]])
    assert groups.instances.sum() == 2700
    assert groups.total_ns.sum() == duration.sum() == 162_532_340
    first = table.names[groups.keys[0, 0]]
    assert first.startswith("ncclKernel_AllReduce")
    assert groups.keys[0, 1] == PhaseCode.BACKWARD
