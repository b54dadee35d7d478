import numpy as np

from peakward.traces.steps import busy_ns, steps
from peakward.traces.table import NONE

from .plain_readers import real
from .rows import Rows


def test_work_belongs_to_the_step_that_launched_it_however_late_it_ran():
    builder = Rows().range("ProfilerStep#7", 0, 10).range("ProfilerStep#8", 10, 20)
    builder.launch("a", 5, gpu=(30, 40)).launch("b", 10, gpu=(40, 50)).launch("c", 25, gpu=(50, 60))
    table, launches = builder.table()
    found = steps(table, launches)
    assert found.step.tolist() == [0, 1, NONE]
    assert (found.start_ns.tolist(), found.end_ns.tolist()) == ([0, 10], [10, 20])


def test_autograds_thread_works_for_the_step_of_the_thread_that_waits():
    builder = Rows().range("ProfilerStep#0", 0, 10).op("aten::mm", 1, 2, sequence=1)
    builder.op("MmBackward0", 3, 8, "autograd", sequence=1)
    builder.launch("k", 4, gpu=(5, 6), thread="autograd")
    table, launches = builder.table()
    assert steps(table, launches).step.tolist() == [0]


def test_peakwards_steps_before_torchs():
    builder = Rows().range("ProfilerStep#0", 0, 40)
    builder.range("peakward::step", 1, 10).range("peakward::step", 11, 20)
    builder.range("peakward::steps", 0, 40).range("ProfilerStep#x", 0, 40)
    table, launches = builder.launch("k", 12, gpu=(13, 14)).table()
    found = steps(table, launches)
    assert len(found) == 2
    assert found.step.tolist() == [1]


def test_busy_time_unites_streams():
    builder = Rows()
    for i in range(3):
        builder.range(f"ProfilerStep#{i}", i * 10, i * 10 + 10)
    builder.launch("a", 1, gpu=[(100, 110), (105, 108), (120, 130)])
    builder.launch("b", 21, gpu=[(125, 135)], device=1).launch("c", 22, gpu=[(125, 145)])
    table, launches = builder.table()
    found = steps(table, launches)
    assert busy_ns(table, found).tolist() == [20, 0, 20]
    assert busy_ns(table, found, device=1).tolist() == [0, 0, 10]


def test_no_steps():
    table, launches = Rows().range("training", 0, 10).launch("k", 1, gpu=(2, 3)).table()
    found = steps(table, launches)
    assert len(found) == 0
    assert found.step.tolist() == [NONE]
    assert busy_ns(table, found).tolist() == []


def test_steps_of_real_traces():
    table, launches = real("a100_ddp_nccl_ns.json.gz")
    found = steps(table, launches)
    assert len(found) == 3
    assert (found.step != NONE).all()
    assert busy_ns(table, found).tolist() == [49_438_921, 49_728_926, 58_332_167]
    assert busy_ns(table, found).sum() == 157_500_014
    table, launches = real("two_ranks_us_rank0.json.gz")
    found = steps(table, launches)
    assert np.bincount(found.step).tolist() == [602, 602]
