"""How long launched work waited for the GPU, and how far the host was ahead."""

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import LaunchDelay
from peakward.traces.calls import call_kinds
from peakward.traces.intervals import total, union
from peakward.traces.launches import call_returns, first_of_launch
from peakward.traces.selection import rows_of_each
from peakward.traces.step_spans import Span, Spans, work_spans
from peakward.traces.table import NONE, Indices, Ints, Table


def launch_delays(
    table: Table, launches: Indices, spans: Spans | None = None
) -> tuple[LaunchDelay, ...]:
    """The launches of each device that has the first work of a known launch.

    `launches` is the result of `launch_rows`, and `spans` are as for `breakdown`. The launch of a graph has
    its first work on one device and may have later work on others.
    """
    spans = work_spans(table.gpu) if spans is None else spans
    returned = call_returns(table.host, call_kinds(table), launches)
    first = first_of_launch(launches)
    known = rows_of_each(table.gpu.device, np.flatnonzero(launches != NONE))
    return tuple(
        _launch_delay(table, returned, first, rows, spans[device])
        for device, rows in known.items()
        if first[rows].any()
    )


def _launch_delay(
    table: Table, returned: Ints, first: NDArray[np.bool_], rows: NDArray[np.intp], span: Span
) -> LaunchDelay:
    device = int(table.gpu.device[rows[0]])
    since, until = returned[rows], table.gpu.start_ns[rows]
    delays = np.maximum(until - since, 0)[first[rows]]
    median, p95, longest = np.quantile(delays, [0.5, 0.95, 1], method="inverted_cdf").tolist()
    span_ns = span.end_ns - span.start_ns
    since = np.maximum(since, span.start_ns)
    waits = until > since
    since, until = since[waits], until[waits]
    return LaunchDelay(
        device=device,
        n_launches=len(delays),
        median_ns=median,
        p95_ns=p95,
        max_ns=longest,
        mean_queue=int((until - since).sum()) / span_ns if span_ns else 0.0,
        max_queue=_deepest(since, until),
        empty_queue_share=1 - total(union(since, until)) / span_ns if span_ns else 1.0,
    )


def _deepest(since: Ints, until: Ints) -> int:
    """The largest number of intervals that share an instant."""
    at = np.concatenate((until, since))
    step = np.repeat(np.array([-1, 1], dtype=np.int64), len(since))
    # Ends come first in `at`, so a stable sort ends one interval before another begins.
    return int(np.cumsum(step[np.argsort(at, kind="stable")]).max(initial=0))
