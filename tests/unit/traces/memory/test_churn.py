"""Retries of cudaMalloc: only what stacks tell from empty_cache."""

import numpy as np
import pytest

from peakward.traces.memory.churn import churn
from peakward.traces.memory.frame_marks import Mark
from peakward.traces.memory.table import NONE, Action, Annotation, Events

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
