"""Tables made by hand, a row at a time."""

import numpy as np

from peakward.traces.table import (
    NONE,
    GpuColumns,
    GpuKind,
    HostColumns,
    HostKind,
    Thread,
    TraceTable,
)

_GPU = {
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "kind": np.uint8,
    "name": np.int32,
    "device": np.int32,
    "stream": np.int64,
    "process": np.int32,
    "correlation": np.int64,
    "n_bytes": np.int64,
    "direction": np.uint8,
    "graph": np.int64,
    "collective": np.int32,
}
_HOST = {
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "kind": np.uint8,
    "name": np.int32,
    "thread": np.int32,
    "correlation": np.int64,
    "sequence": np.int64,
    "backward": np.bool_,
    "shape": np.int32,
}


class _Positions(dict):
    """What was seen first has position 0."""

    def __missing__(self, key):
        self[key] = len(self)
        return self[key]


def _columns(kind, types, rows):
    order = sorted(range(len(rows)), key=lambda i: rows[i]["start_ns"])
    columns = {
        name: np.array([rows[i][name] for i in order], dtype=type_) for name, type_ in types.items()
    }
    return kind(**columns)


class Rows:
    """Collects rows; a thread is "name" or "process/name"."""

    def __init__(self):
        self._gpu, self._host = [], []
        self._names, self._shapes = _Positions(), _Positions()
        self._processes, self._threads = _Positions(), _Positions()
        self._correlation = 0

    def _process(self, thread):
        return self._processes[thread.rpartition("/")[0] or "1"]

    def host(self, kind, name, start, end, thread="main", **more):
        """A row of the host, from `start` to `end`."""
        self._process(thread)
        shape = more.pop("shape", None)
        row = {
            "start_ns": start,
            "duration_ns": end - start,
            "kind": kind,
            "name": self._names[name],
            "thread": self._threads[thread],
            "correlation": NONE,
            "sequence": NONE,
            "backward": False,
            "shape": NONE if shape is None else self._shapes[shape],
        }
        self._host.append(row | more)
        return self

    def op(self, name, start, end, thread="main", **more):
        """An operator."""
        return self.host(HostKind.OP, name, start, end, thread, **more)

    def range(self, name, start, end, thread="main"):
        """A range that somebody named."""
        return self.host(HostKind.RANGE, name, start, end, thread)

    def gpu(self, name, start, end, process="1", **more):
        """Work whose launch is not in the trace, unless `correlation` says so."""
        row = {
            "start_ns": start,
            "duration_ns": end - start,
            "kind": GpuKind.KERNEL,
            "name": self._names[name],
            "device": 0,
            "stream": 7,
            "process": self._processes[process],
            "correlation": NONE,
            "n_bytes": NONE,
            "direction": 0,
            "graph": NONE,
            "collective": NONE,
        }
        self._gpu.append(row | more)
        return self

    def launch(self, name, at, *, gpu, thread="main", call="cudaLaunchKernel", **more):
        """A call at `at` that lasts 2 ns, and its kernels: `gpu` is (start, end) or several."""
        self._correlation += 1
        self.host(HostKind.CALL, call, at, at + 2, thread, correlation=self._correlation)
        process = thread.rpartition("/")[0] or "1"
        for start, end in [gpu] if isinstance(gpu, tuple) else gpu:
            self.gpu(name, start, end, process, correlation=self._correlation, **more)
        return self

    def table(self):
        """What was collected, and each GPU row's launch."""
        table = TraceTable(
            source="hand.json",
            format="torch",
            gpu=_columns(GpuColumns, _GPU, self._gpu),
            host=_columns(HostColumns, _HOST, self._host),
            names=tuple(self._names),
            shapes=tuple(self._shapes),
            processes=tuple(self._processes),
            threads=tuple(
                Thread(self._process(thread), thread.rpartition("/")[2], None)
                for thread in self._threads
            ),
            devices=(),
            job=None,
            epoch_ns=None,
            limits=(),
        )
        by_call = {
            (table.threads[table.host.thread[i]].process, table.host.correlation[i]): i
            for i in range(len(table.host))
            if table.host.correlation[i] != NONE
        }
        pairs = zip(table.gpu.process, table.gpu.correlation, strict=True)
        return table, np.array([by_call.get(pair, NONE) for pair in pairs], dtype=np.int32)
