"""Why a GPU can be idle.

A gap is a stretch of a device's span in which nothing runs on any of its streams (`step_spans`: the span of
its steps, or from its first work to its last). A gap ends with the steps, or with the start of some work, its
*next work*: of several that start together, one whose launch is known. A call of the host launched the next
work. That call *returns* at its end. A copy that blocks counts as returned when it begins. The launch of a
graph counts as returned earlier for all but the graph's first work. Two threads of the host count: the one
that launched the next work (or marks the steps, where no work comes any more), and the one that launched the
work before the gap, because backward passes run on a thread of their own. Waiting for a collective or for a
copy is no gap: their kernels run while others wait for them.
"""

from enum import IntEnum


class IdleCause(IntEnum):
    """Why a piece of a gap is idle, in the order in which a cause is sought.

    From the gap's start until the launch of the next work returns, or the steps end:

    - `PROFILER`: the profiler itself took time of that process.
    - `DATA_LOADING`: the host waited for the next batch.
    - `SYNCHRONISATION`: the host was in a call that waits for the GPU.
    - `AFTER_SYNCHRONISATION`: the host was in such a call when the gap began, so that the GPU ran dry
      because the host had waited instead of launching ahead; now it was on its way to the next launch.
    - `HOST_BOUND`: the host was on its way to the next launch, or in it, without having waited.

    From then on, to the start of the next work:

    - `STREAM_WAIT`: right before that launch, with no other between, its thread had made a stream
      wait for an event, and another device ran; or, of a short piece, another stream of this device
      had run until the gap began.

    The rest of it is one piece, of whichever holds first:

    - `UNSEEN`: it is longer than `UNSEEN_NS`. The work waited for something that the trace does not
      show: rows that it lacks, another program's work.
    - `GRAPH_START`: the next work is the first of a graph.
    - `QUEUED`: the launch had returned before the gap began: what the GPU needs from one piece of work
      to the next.
    - `LAUNCH_LATENCY`: the launch returned in the gap: its way to an idle GPU.

    `UNKNOWN`, all of a gap: the launch of the next work is not in the trace.
    """

    PROFILER = 0
    DATA_LOADING = 1
    SYNCHRONISATION = 2
    AFTER_SYNCHRONISATION = 3
    HOST_BOUND = 4
    GRAPH_START = 5
    STREAM_WAIT = 6
    UNSEEN = 7
    QUEUED = 8
    LAUNCH_LATENCY = 9
    UNKNOWN = 10


UNSEEN_NS = 100_000
"""In complete traces of A100, H100 and MI300 no launched work took longer than 56 µs to start on an
idle GPU."""
