"""Figures against those that torch kept itself, and against an allocator that knows the truth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.traces.memory.block_sizes import held_at
from peakward.traces.memory.device_memory import (
    N_STRETCHES,
    Balances,
    churn,
    free_pieces,
    open_ranges,
    segment_kinds,
    timeline,
)
from peakward.traces.memory.memory import Memory
from peakward.traces.memory.origins import Mark
from peakward.traces.memory.snapshot_file import read
from peakward.traces.memory.table import NONE, Action, Annotation, Block, MemoryEvents, Segment

from .allocator import busy
from .files import REAL, real, stats, written

WHOLE = [each for each in REAL if each != "late"]
"""Recorded from the process's first allocation on, so that torch's own peaks are of the recording."""


def device(path):
    (found,) = Memory(read(path)).devices
    return found


@pytest.mark.parametrize("name", WHOLE)
def test_peaks_and_counts_are_torchs_own_to_the_byte(name):
    found, torch = device(real(name)), stats(name)
    for series, key in (("allocated", "allocated_bytes"), ("active", "active_bytes")):
        assert getattr(found.balances, series).max() == torch[f"{key}.all.peak"]
        assert getattr(found.balances, series)[-1] == torch[f"{key}.all.current"]
    assert found.balances.requested.max() == torch["requested_bytes.all.peak"]
    assert found.balances.reserved.max() == torch["reserved_bytes.all.peak"]
    record = found.record()
    assert record.churn.n_allocs == torch["allocation.all.allocated"]
    assert record.churn.n_frees == torch["allocation.all.freed"]
    assert record.churn.allocated_bytes == torch["requested_bytes.all.allocated"]
    assert record.churn.n_device_allocs == torch["num_device_alloc"]
    assert record.churn.n_device_frees == torch["num_device_free"]
    assert len(record.ooms) == torch["num_ooms"]


@pytest.mark.parametrize("name", REAL)
def test_the_end_is_torchs_own_to_the_byte_and_nothing_contradicts(name):
    record, torch = device(real(name)).record(), stats(name)
    assert record.end.allocated_bytes == torch["allocated_bytes.all.current"]
    assert record.end.requested_bytes == torch["requested_bytes.all.current"]
    assert record.end.reserved_bytes == torch["reserved_bytes.all.current"]
    if name != "expandable":  # torch counts no split blocks there.
        split = sum(each.split_bytes for each in record.segments)
        assert split == torch["inactive_split_bytes.all.current"]
    assert record.check.n_contradicting_events == record.check.n_contradicting_blocks == 0
    assert record.check.difference_bytes == record.check.n_sizes_wrong == 0
    assert record.check.n_sizes_checked > 0


@pytest.mark.parametrize("name", ["late"])
def test_a_ring_that_lost_its_beginning_starts_with_what_was_there(name):
    record = device(real(name)).record()
    assert record.before_bytes == 595_721_216
    assert record.start.requested_bytes == 688_964_656
    assert record.start.reserved_bytes == 1_023_410_176
    assert record.peak.balance.requested_bytes == stats(name)["requested_bytes.all.peak"]


def test_an_out_of_memory_says_what_was_free():
    (found,) = device(real("oom")).record().ooms
    assert found.needed_bytes == 100_663_296
    assert (
        found.cached_free_bytes
        == (found.balance.reserved_bytes - found.balance.active_bytes)
        == 82_734_080
    )
    assert found.largest_free_bytes == 50_331_648
    assert found.was_limited and not found.was_fragmented
    assert "masked_scores" in found.source


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 250), data=st.data())
def test_every_moment_is_true_wherever_the_ring_begins(tmp_path_factory, seed, n, data):
    made = busy(seed, n)
    since = data.draw(st.integers(0, len(made.events)))
    found = device(written(tmp_path_factory.mktemp("s"), made.snapshot(since)))
    before = made.truth[since - 1] if since else (0, 0, 0)
    truth = np.array([before, *made.truth[since:]])
    assert found.balances.requested.tolist() == truth[:, 1].tolist()
    assert found.balances.reserved.tolist() == truth[:, 2].tolist()
    # Of what was freed in the recording and made before it, only the least size is known.
    surely = ~np.array(
        [(found.lifetimes.alive(at) & found.sizes.is_least).any() for at in range(len(truth))]
    )
    assert found.balances.allocated[surely].tolist() == truth[surely, 0].tolist()
    assert (found.balances.allocated <= truth[:, 0]).all()
    assert found.sizes.n_wrong == 0
    assert found.lifetimes.contradictions == (0, 0, 0)
    if since == 0:
        assert surely.all()


def test_what_was_not_recorded_is_noticed_and_said(tmp_path):
    made = busy(5, 120).snapshot()
    trace = made["device_traces"][0]
    allocs = [n for n, each in enumerate(trace) if each["action"] == "alloc"]
    del trace[allocs[len(allocs) // 2]]
    report = Memory(read(written(tmp_path, made))).report()
    check = report.devices[0].check
    assert check.n_contradicting_events + check.n_contradicting_blocks > 0 or (
        report.devices[0].start.requested_bytes > 0
    )


def test_a_pause_of_recording_is_said_in_bytes(tmp_path):
    made = busy(5, 120).snapshot()
    made["device_traces"][0] = [
        each for each in made["device_traces"][0] if each["action"] != "free_requested"
    ][:-40]
    report = Memory(read(written(tmp_path, made))).report()
    assert report.devices[0].check.n_contradicting_blocks > 0
    assert any("contradict one another" in each for each in report.incomplete)


def test_without_events_there_is_an_end_and_no_peak(tmp_path):
    made = busy(5, 120).snapshot() | {"device_traces": [[]]}
    report = Memory(read(written(tmp_path, made))).report()
    (found,) = report.devices
    assert found.peak is None and found.timeline == () and found.n_events == 0
    assert found.end.allocated_bytes == busy(5, 120).held()[0]
    assert any("has no events" in each for each in report.incomplete)


def test_nothing_at_all(tmp_path):
    assert Memory(read(written(tmp_path, {"segments": []}))).report().devices == ()


A, F, T, G, O = (  # noqa: E741
    Action.ALLOC,
    Action.FREE_REQUESTED,
    Action.SEGMENT_ALLOC,
    Action.SEGMENT_FREE,
    Action.OOM,
)
PYTHON, EMPTY = 0, 1
MARKS = np.array([int(Mark.PYTHON), int(Mark.PYTHON | Mark.EMPTY_CACHE)])


def events(*pairs):
    n = len(pairs)
    action, stack = (np.array(each, np.int64) for each in zip(*pairs, strict=True))
    return MemoryEvents(
        device=np.zeros(n, np.int64),
        action=action,
        address=np.arange(n) * 512,
        n_bytes=np.full(n, 100),
        time_us=np.arange(n),
        stack=stack,
        has_forward=np.zeros(n, bool),
    )


@pytest.mark.parametrize(
    ("actions", "n", "n_bytes"),
    [
        (((G, PYTHON), (G, PYTHON), (T, PYTHON), (A, PYTHON)), 1, 200),
        (((G, PYTHON), (O, PYTHON)), 1, 100),
        (((G, PYTHON), (A, PYTHON), (T, PYTHON)), 0, 0),
        (((G, EMPTY), (T, PYTHON)), 0, 0),
        (((G, NONE), (T, NONE)), 0, 0),
        (((G, PYTHON), (T, PYTHON), (A, PYTHON), (G, PYTHON), (T, PYTHON)), 2, 200),
        (((A, PYTHON), (G, PYTHON)), 0, 0),
    ],
)
def test_retries(actions, n, n_bytes):
    found = churn(events(*actions), MARKS, ())
    assert (found.n_retries, found.retry_bytes) == (n, n_bytes)


def test_counts_and_steps():
    steps = [Annotation(0, 1, "Optimizer.step#SGD.step", stage) for stage in ("START", "END")]
    found = churn(events((T, PYTHON), (A, PYTHON), (F, PYTHON)), MARKS, steps)
    assert (found.n_allocs, found.n_frees, found.n_device_allocs, found.n_steps) == (1, 1, 1, 1)
    assert churn(events((A, PYTHON)), MARKS, ()).n_steps is None


@pytest.mark.parametrize("seed", range(5))
def test_free_pieces_at_the_end_are_the_segments_own(seed, tmp_path):
    (device,) = Memory(read(written(tmp_path, busy(seed, 300).snapshot()))).devices
    end = len(device.events)
    held = held_at(device.events, device.segments, end)
    blocks = [block for each in device.segments for block in each.blocks]
    assert sorted(free_pieces(device.lifetimes, device.sizes.n_bytes, held, end)) == sorted(
        each.n_bytes for each in blocks if each.state == "inactive"
    )


def segment(pool=(0, 0), kind="large", is_expandable=False, states=("active_allocated",)):
    blocks = tuple(Block(512 * n, 512, 512, state, NONE) for n, state in enumerate(states))
    return Segment(0, 0, 512 * len(blocks), 0, kind, pool, is_expandable, blocks)


def test_kinds_and_split_blocks():
    small = segment(kind="small", states=("inactive",))
    split = segment(states=("inactive", "active_allocated", "inactive", "active_awaiting_free"))
    graph = segment(pool=(3, 1), states=("active_allocated", "inactive"))
    growing = segment(is_expandable=True)
    found = {each.name: each for each in segment_kinds((small, split, graph, growing))}
    assert next(iter(found)) == "large blocks"
    assert set(found) == {
        "large blocks",
        "small blocks",
        "large blocks, private pool 3.1",
        "large blocks, expandable",
    }
    plain = found["large blocks"]
    assert (plain.n_split, plain.split_bytes, plain.free_bytes) == (2, 1024, 1024)
    assert (plain.allocated_bytes, plain.reserved_bytes, plain.largest_free_bytes) == (
        512,
        2048,
        512,
    )
    # A segment that is free as a whole can be given back.
    assert (found["small blocks"].free_bytes, found["small blocks"].n_split) == (512, 0)


def test_no_peak_is_lost_and_points_are_few():
    rng = np.random.default_rng(0)
    held = rng.integers(0, 1000, 20_000)
    time_us = np.sort(rng.integers(0, 10**6, 20_000))
    found = timeline(Balances(held, held, held * 2, held), time_us)
    assert len(found) <= N_STRETCHES + 1
    assert max(each.allocated_bytes for each in found) == held.max()
    assert max(each.reserved_bytes for each in found) == 2 * held.max()
    assert [each.at_s for each in found] == sorted(each.at_s for each in found)


def test_events_all_at_once():
    held = np.array([0, 5, 3])
    found = timeline(Balances(held, held, held, held), np.zeros(3, np.int64))
    assert [each.allocated_bytes for each in found] == [0, 5]


def test_open_ranges_are_those_begun_and_not_ended():
    marks = [
        Annotation(0, 1, "step", "START"),
        Annotation(0, 2, "forward", "START"),
        Annotation(0, 3, "forward", "END"),
        Annotation(0, 4, "backward", "START"),
        Annotation(0, 9, "step", "END"),
    ]
    assert open_ranges(marks, 2) == ("step", "forward")
    assert open_ranges(marks, 5) == ("step", "backward")
    assert open_ranges(marks, 0) == ()


def test_of_ranges_of_one_name_the_last_begun_ends_first():
    marks = [
        Annotation(0, 1, "a", "START"),
        Annotation(0, 2, "b", "START"),
        Annotation(0, 3, "a", "START"),
        Annotation(0, 4, "a", "END"),
        Annotation(0, 5, "c", "END"),
    ]
    assert open_ranges(marks, 3) == ("a", "b", "a")
    assert open_ranges(marks, 9) == ("a", "b")
