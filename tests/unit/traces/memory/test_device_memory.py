"""Figures against those that torch kept itself, and against an allocator that knows the truth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.traces.memory.device_memory import churn
from peakward.traces.memory.frame_marks import Mark
from peakward.traces.memory.memory import Memory
from peakward.traces.memory.snapshot_file import read
from peakward.traces.memory.table import NONE, Action, Annotation, Events

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
    return Events(
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
