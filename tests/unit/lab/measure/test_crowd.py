"""Other work on our cores, from the kernel's counters."""

import multiprocessing
import time

import pytest

from peakward.lab.measure import crowd
from peakward.lab.measure.crowd import Crowd, Reading, busy_s, judge

STAT = """cpu  900 0 900 9000 0 0 0 0 0 0
cpu0 100 10 20 5000 77 3 4 5 50 0
cpu1 200 0 0 5000 0 0 0 0 0 0
cpu12 300 0 0 5000 0 0 0 0 0 0
intr 12345 0 0
ctxt 99
"""


@pytest.mark.parametrize(
    ("cores", "ticks"), [({0}, 142), ({1}, 200), ({0, 1}, 342), ({12}, 300), ({2}, 0)]
)
def test_busy_time_of_our_cores_alone(cores, ticks):
    assert busy_s(STAT, cores) == ticks / crowd.USER_HZ


@pytest.mark.parametrize(
    ("elapsed_s", "busy", "own", "doubt"),
    [
        (1.0, 2.0, 2.0, None),  # both cores ours
        (1.0, 1.1, 1.0, None),  # exactly the share that passes
        (1.0, 1.0, 0.2, "other programs used 40% of the CPU while timing (limit 5%)"),
        (1.0, 0.99, 1.0, None),  # the two clocks disagree by a tick
        (0.4, 0.8, 0.0, None),  # too short for the kernel's ticks
    ],
)
def test_the_share_of_others(elapsed_s, busy, own, doubt):
    assert (
        judge(Reading(5.0, 7.0, 3.0), Reading(5.0 + elapsed_s, 7.0 + busy, 3.0 + own), 2) == doubt
    )


def test_the_block_is_what_is_judged(monkeypatch):
    readings = iter([Reading(0.0, 0.0, 0.0), Reading(1.0, 64.0, 0.0)])
    monkeypatch.setattr(crowd, "_read", lambda cores: next(readings))
    watch = Crowd()
    assert watch.doubt() is None
    with watch:
        pass
    assert "of the CPU while timing" in watch.doubt()


def test_without_proc_nobody_can_say(monkeypatch):
    monkeypatch.setattr(crowd.proc, "read", lambda path: None)
    with Crowd() as watch:
        pass
    assert watch.doubt() is None
    assert watch.telemetry(1) is None


def test_real_counters_grow_with_our_own_work():
    before = crowd._read({0, 1})
    total = sum(range(5_000_000))
    after = crowd._read({0, 1})
    assert total > 0
    assert after.own_s > before.own_s
    assert after.busy_s >= before.busy_s


def test_a_process_is_read_by_the_columns_behind_its_name():
    stat = "7 (a (b) c) S 1 7 7 0 -1 4194304 1 0 0 0 250 50 9 9 20 0 1 0 5 0 0"
    assert crowd.process_s(stat) == 300 / crowd.USER_HZ


def _work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    time.sleep(60)


def test_the_workers_of_a_loader_are_our_own():
    before = crowd._read({0, 1})
    worker = multiprocessing.get_context("fork").Process(target=_work, args=(0.3,), daemon=True)
    worker.start()
    try:
        while crowd.processes_s([worker.pid]) < 0.25:
            time.sleep(0.02)
        after = crowd._read({0, 1})
        assert after.own_s - before.own_s >= 0.25
    finally:
        worker.kill()
        worker.join()
