"""Exports of Nsight Systems: a real one to the nanosecond, and a small one for every trap."""

import sqlite3

import numpy as np
import pytest

from peakward.records.errors import PeakwardError
from peakward.traces.readers import nsys_export
from peakward.traces.table import NONE, Device, Direction, GpuKind, HostKind, Thread

PID = (1 << 48) | (145 << 24)
OTHER_PID = (1 << 48) | (146 << 24)
TID = PID | 145

CUPTI = ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "GRAPH_TRACE")
STRINGS = ("id integer primary key, value text", (1, "gemm<float>"), (2, "cudaLaunchKernel_v7000"))
KERNEL = "start, end, deviceId, streamId, correlationId, globalPid, demangledName"
COPY = "start, end, deviceId, streamId, correlationId, globalPid, bytes, copyKind"
CALL = "start, end, globalTid, correlationId, nameId"
RANGE = "start, end, eventType, text, globalTid, textId"


@pytest.fixture
def read(tmp_path):
    """read(KERNEL=(columns, row, …), …): the table of an export with those tables."""

    def make(**tables):
        path = tmp_path / "made.sqlite"
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as connection:
            for name, (columns, *rows) in {"StringIds": STRINGS, **tables}.items():
                table = f"CUPTI_ACTIVITY_KIND_{name}" if name in CUPTI else name
                connection.execute(f"CREATE TABLE {table} ({columns})")
                for row in rows:
                    marks = ", ".join("?" * len(row))
                    connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)
        connection.close()
        return nsys_export.read(path)

    return make


def host_names(table, kind):
    return [table.names[each] for each in table.host.name[table.host.kind == kind]]


# The real export: figures computed independently of this reader, stated beside the file.


@pytest.fixture(scope="module")
def real(exact_traces):
    return nsys_export.read(exact_traces / "h100_2gpu_flash_nccl.sqlite")


def test_counts_of_the_real_export(real):
    kinds = real.gpu.kind
    assert [int((kinds == each).sum()) for each in GpuKind] == [4010, 1020, 269]
    assert int((real.host.kind == HostKind.CALL).sum()) == 7466
    assert int(np.isin(real.host.kind, (HostKind.OP, HostKind.RANGE)).sum()) == 19118
    assert int((real.host.kind == HostKind.OVERHEAD).sum()) == 6
    assert real.processes == ("144", "145")
    assert [each.name for each in real.threads][:2] == ["python3", "CUPTI worker th"]
    assert real.epoch_ns == 1_779_782_330_176_752_435
    assert real.limits == ()


@pytest.mark.parametrize(
    ("device", "n", "sum_ns", "busy_ns", "span_ns"),
    [
        (0, 1993, 270_875_926, 270_863_484, 299_848_812),
        (1, 2017, 264_324_724, 264_324_724, 298_661_551),
    ],
)
def test_kernels_of_each_device(real, device, n, sum_ns, busy_ns, span_ns):
    gpu = real.gpu
    rows = (gpu.kind == GpuKind.KERNEL) & (gpu.device == device)
    start, end = gpu.start_ns[rows], gpu.end_ns[rows]
    assert (len(start), int((end - start).sum())) == (n, sum_ns)
    assert int(end.max() - start.min()) == span_ns
    covered = np.maximum.accumulate(np.concatenate([start[:1], end[:-1]]))
    assert int(np.maximum(end - np.maximum(start, covered), 0).sum()) == busy_ns


def launches(table):
    """The call behind each kernel, by process and correlation."""
    host, gpu = table.host, table.gpu
    process = np.array([each.process for each in table.threads])[host.thread]
    calls = {
        (int(process[row]), int(host.correlation[row])): row
        for row in np.flatnonzero(host.kind == HostKind.CALL)
    }
    for row in np.flatnonzero(gpu.kind == GpuKind.KERNEL):
        call = calls.get((int(gpu.process[row]), int(gpu.correlation[row])))
        if call is not None:
            yield row, call


def test_kernels_join_their_launches_within_a_process(real):
    joined = list(launches(real))
    assert len(joined) == 3986
    assert {real.names[real.host.name[call]] for _, call in joined} == {
        "cudaLaunchKernel",
        "cuLaunchKernelEx",
    }


def test_kernel_time_by_innermost_range(real):
    host = real.host
    innermost = {}
    for thread in range(len(real.threads)):
        # By start, parents first: the stack holds what is open.
        stack = []
        for row in np.flatnonzero((host.thread == thread) & (host.kind != HostKind.OVERHEAD)):
            while stack and host.end_ns[stack[-1]] <= host.start_ns[row]:
                stack.pop()
            if host.kind[row] == HostKind.CALL:
                innermost[row] = stack[-1] if stack else None
            else:
                stack.append(row)
    sums = {}
    for kernel, call in launches(real):
        if innermost[call] is not None:
            name = real.names[host.name[innermost[call]]]
            n, total = sums.get(name, (0, 0))
            sums[name] = (n + 1, total + int(real.gpu.duration_ns[kernel]))
    expected = {
        "flash_attn::_flash_attn_forward": (66, 256_586_234),
        "aten::copy_": (1816, 64_364_656),
        "aten::addmm": (335, 57_595_448),
        "aten::mul": (501, 42_979_045),
        "ncclGroupEnd": (64, 25_179_513),
    }
    assert {name: sums[name] for name in expected} == expected


def test_columns_of_the_real_export_are_sorted_and_whole(real):
    for columns in (real.gpu, real.host):
        assert (np.diff(columns.start_ns) >= 0).all()
        assert (columns.duration_ns >= 0).all()
        assert columns.start_ns.dtype == columns.duration_ns.dtype == np.int64
        assert columns.name.max() < len(real.names)
        assert columns.name.min() >= 0
    assert real.gpu.direction.max() == Direction.DEVICE_TO_DEVICE
    assert "aten::addmm" in host_names(real, HostKind.OP)
    assert "ncclSend" in host_names(real, HostKind.RANGE)


# Small ones.


def test_kernel_and_launch(read):
    table = read(
        KERNEL=(KERNEL, (100, 130, 0, 7, 5, PID, 1)),
        RUNTIME=(CALL, (90, 95, TID, 5, 2)),
        ThreadNames=("nameId, priority, globalTid", (1, 10, TID)),
    )
    gpu, host = table.gpu, table.host
    assert (table.format, table.source, table.processes) == ("nsys", "made.sqlite", ("145",))
    assert (gpu.start_ns[0], gpu.duration_ns[0], gpu.stream[0], gpu.device[0]) == (100, 30, 7, 0)
    assert gpu.correlation[0] == host.correlation[0] == 5
    assert [table.names[gpu.name[0]], table.names[host.name[0]]] == [
        "gemm<float>",
        "cudaLaunchKernel",
    ]
    assert (gpu.n_bytes[0], gpu.graph[0]) == (NONE, NONE)
    assert table.threads == (Thread(0, "145", "gemm<float>"),)
    assert table.devices == (Device(0, None, None, None),)
    assert table.epoch_ns is None


def test_processes_that_share_correlation_ids_stay_apart(read):
    table = read(
        KERNEL=(KERNEL, (100, 130, 0, 7, 5, PID, 1), (110, 140, 1, 7, 5, OTHER_PID, 1)),
        RUNTIME=(CALL, (90, 95, TID, 5, 2), (91, 96, OTHER_PID | 9, 5, 2)),
    )
    assert table.processes == ("145", "146")
    assert list(launches(table)) == [(0, 0), (1, 1)]


def test_processes_of_two_machines_with_one_pid(read):
    table = read(KERNEL=(KERNEL, (1, 2, 0, 7, 5, PID, 1), (3, 4, 0, 7, 5, PID + (1 << 48), 1)))
    assert table.processes == ("145 on 0x1", "145 on 0x2")


def test_one_ordinal_in_two_processes_is_two_gpus(read):
    table = read(
        KERNEL=(KERNEL, (1, 2, 0, 7, 5, PID, 1), (3, 4, 0, 7, 5, OTHER_PID, 1)),
        TARGET_INFO_CUDA_DEVICE=("gpuId, cudaId, pid", (3, 0, 145), (2, 0, 146), (9, 1, 145)),
        TARGET_INFO_GPU=(
            "id, name, totalMemory, smCount",
            (3, "NVIDIA H100", 85_520_809_984, 132),
            (9, "unused", 1, 1),
        ),
    )
    assert table.gpu.device.tolist() == [3, 2]
    assert table.devices == (
        Device(2, None, None, None),
        Device(3, "NVIDIA H100", 85_520_809_984, 132),
    )


def test_ordinals_stand_for_themselves_where_a_process_is_unknown(read):
    table = read(
        KERNEL=(KERNEL, (1, 2, 0, 7, 5, PID, 1), (3, 4, 0, 7, 5, OTHER_PID, 1)),
        TARGET_INFO_CUDA_DEVICE=("gpuId, cudaId, pid", (3, 0, 145)),
    )
    assert [each.id for each in table.devices] == [0]


def test_copies_sets_and_their_directions(read):
    table = read(
        MEMCPY=(
            COPY,
            *((kind, kind + 1, 0, 7, kind, PID, 4096, kind) for kind in (1, 2, 8, 9, 10, 99)),
        ),
        MEMSET=(
            "start, end, deviceId, streamId, correlationId, globalPid, bytes",
            (200, 201, 0, 7, 300, PID, 64),
            (202, 203, 0, 7, 301, PID, 2**53),
            (204, 205, 0, 7, 302, PID, -2),
        ),
        RUNTIME=(CALL, (1, 2, TID, 1, 2)),
    )
    assert table.gpu.direction.tolist() == [
        Direction.HOST_TO_DEVICE,
        Direction.DEVICE_TO_HOST,
        Direction.DEVICE_TO_DEVICE,
        Direction.HOST_TO_HOST,
        Direction.PEER,
        *[Direction.UNKNOWN] * 4,
    ]
    assert [table.names[each] for each in table.gpu.name] == [
        *("Memcpy HtoD", "Memcpy DtoH", "Memcpy DtoD", "Memcpy HtoH", "Memcpy PtoP", "Memcpy"),
        *["Memset"] * 3,
    ]
    assert table.gpu.n_bytes.tolist() == [4096] * 6 + [64, NONE, NONE]
    assert table.gpu.kind.tolist() == [GpuKind.COPY] * 6 + [GpuKind.SET] * 3


def test_older_columns(read):
    """No stream, process, graph or demangled name; the only process in the file is the kernel's."""
    table = read(
        KERNEL=("start, end, deviceId, shortName", (100, 130, 0, 1)),
        RUNTIME=("start, end, globalTid, nameId", (90, 95, TID, 2)),
    )
    gpu = table.gpu
    assert table.names[gpu.name[0]] == "gemm<float>"
    assert (gpu.stream[0], gpu.correlation[0], gpu.graph[0]) == (NONE, NONE, NONE)
    assert (gpu.process[0], table.processes) == (0, ("145",))


def test_work_of_an_unknown_process_joins_none_of_several(read):
    table = read(
        KERNEL=(KERNEL, (1, 2, 0, 7, 5, None, 1), (3, 4, 0, 7, 5, PID, 1)),
        RUNTIME=(CALL, (1, 2, OTHER_PID, 5, 2)),
    )
    assert table.processes == ("145", "146", "unknown")
    assert table.gpu.process.tolist() == [2, 0]


def test_a_missing_demangled_name_gives_way_to_the_short_one(read):
    table = read(
        KERNEL=(
            "start, end, deviceId, demangledName, shortName",
            (1, 2, 0, None, 1),
            (3, 4, 0, 77, 1),
        )
    )
    assert [table.names[each] for each in table.gpu.name] == ["gemm<float>", "(unnamed)"]


def test_without_a_needed_column(read):
    with pytest.raises(
        PeakwardError,
        match=r"^expected the columns start, end, deviceId, demangledName in "
        r"CUPTI_ACTIVITY_KIND_KERNEL, got none named deviceId, demangledName in .*: export",
    ):
        read(KERNEL=("start, end", (1, 2)))


def test_nodes_of_a_graph(read):
    columns = f"{KERNEL}, graphId, graphNodeId"
    table = read(
        KERNEL=(
            columns,
            (1, 2, 0, 7, 5, PID, 1, 3, 99),
            (3, 4, 0, 7, 5, PID, 1, None, (4 << 32) | 9),
            (5, 6, 0, 7, 5, PID, 1, 0, 0),
        )
    )
    assert table.gpu.graph.tolist() == [3, 4, NONE]


def test_a_graph_traced_as_a_whole_keeps_the_gpu_busy(read):
    table = read(
        GRAPH_TRACE=(
            "start, end, deviceId, streamId, correlationId, globalPid, graphId, graphExecId",
            (100, 180, 0, 7, 5, PID, 12, 1),
            (200, 290, 0, 7, 6, PID, 12, 1),
            (0, 0, 0, 7, 7, PID, 12, 1),
            (300, 310, 2**31 - 1, 7, 8, PID, 12, 1),
        )
    )
    assert table.gpu.duration_ns.tolist() == [80, 90]
    assert table.gpu.graph.tolist() == [12, 12]
    assert {table.names[each] for each in table.gpu.name} == {"CUDA graph 12"}
    assert table.limits == (
        "rows of CUPTI_ACTIVITY_KIND_GRAPH_TRACE left out for an end before the start, no time, or "
        "one out of range: 1",
        "rows of CUPTI_ACTIVITY_KIND_GRAPH_TRACE left out for being on no device: 1",
        "launches of CUDA graphs that hide their kernels, one row each: 2, 170 ns in all; "
        "`nsys profile --cuda-graph-trace=node` records what is inside",
    )


def test_ranges_by_text_by_id_and_of_torch(read):
    table = read(
        NVTX_EVENTS=(
            RANGE,
            (10, 90, 59, "step, with a comma", TID, None),
            (20, 40, 59, None, TID, 1),
            (50, 70, 60, "aten::mm, seq = 12, op_id = 3, sizes = [[2, 4], [4, 8]]", TID, None),
            (80, 80, 34, "mark", TID, None),
            (81, 82, 75, "domain", TID, None),
            (85, 86, 59, None, TID, None),
        )
    )
    host = table.host
    assert host_names(table, HostKind.RANGE) == ["step, with a comma", "gemm<float>", "(unnamed)"]
    assert host_names(table, HostKind.OP) == ["aten::mm"]
    assert host.sequence.tolist() == [NONE, NONE, 12, NONE]
    assert table.shapes == ("[[[2, 4], [4, 8]],null,null]",)
    assert host.shape.tolist() == [NONE, NONE, 0, NONE]
    assert host.correlation.tolist() == [NONE] * 4
    assert not host.backward.any()
    assert table.limits == ("NVTX marks left out, as they take no time: 1",)
    assert len(table.gpu) == 0


def test_open_ranges_end_with_the_capture(read):
    table = read(
        NVTX_EVENTS=(RANGE, (10, None, 59, "open", TID, None), (20, 30, 59, "shut", TID, None)),
        KERNEL=(KERNEL, (100, 130, 0, 7, 5, PID, 1)),
    )
    assert table.host.end_ns.tolist() == [130, 30]
    assert table.limits == ("NVTX ranges without an end, which end with the capture: 1",)


def test_a_parent_comes_before_a_child_that_starts_with_it(read):
    table = read(
        NVTX_EVENTS=(RANGE, (10, 20, 59, "child", TID, None), (10, 30, 59, "parent", TID, None))
    )
    assert host_names(table, HostKind.RANGE) == ["parent", "child"]


def test_rows_that_hold_no_integers_are_left_out_and_counted(read):
    table = read(
        KERNEL=(
            KERNEL,
            ("12", 130, 0, 7, 5, PID, 1),
            (1.5, 130, 0, 7, 5, PID, 1),
            (b"\0", 130, 0, 7, 5, PID, 1),
            (None, 130, 0, 7, 5, PID, 1),
            (2.0**63, 130, 0, 7, 5, PID, 1),
            (1, 2, 0, "stream", 5, PID, 1),
            (1, 2, 0, None, None, None, 1),
            (100, 130, 0, 7, 5, PID, 1),
        )
    )
    assert table.gpu.start_ns.tolist() == [1, 100]
    assert table.limits == (
        "rows of CUPTI_ACTIVITY_KIND_KERNEL left out for text, a fraction or nothing where a whole "
        "number must be: 6",
    )


@pytest.mark.parametrize(
    ("start", "end"),
    [(5, 4), (0, 0), (7, 0), (-(2**63), 2**63 - 1), (2**63 - 1, 2**63 - 1), (0, 2**53)],
)
def test_times_that_cannot_be_are_left_out_and_counted(read, start, end):
    table = read(KERNEL=(KERNEL, (start, end, 0, 7, 5, PID, 1), (1, 2, 0, 7, 5, PID, 1)))
    assert table.gpu.start_ns.tolist() == [1]
    assert table.limits == (
        "rows of CUPTI_ACTIVITY_KIND_KERNEL left out for an end before the start, no time, or one "
        "out of range: 1",
    )


def test_an_export_whose_rows_were_all_left_out_is_refused_with_the_reason_first(read):
    with pytest.raises(
        PeakwardError, match=r"^rows of CUPTI_ACTIVITY_KIND_KERNEL left out for an end"
    ):
        read(KERNEL=(KERNEL, (5, 4, 0, 7, 5, PID, 1)))


def test_hostile_names_stay_names(read):
    names = ["'; DROP TABLE x; --", "\x1b[2J", "a\0b"]
    strings = ("id integer primary key, value", *enumerate([*names, b"\xff\xfe", 4], 1))
    table = read(
        StringIds=strings,
        KERNEL=(KERNEL, *((each, each + 1, 0, 7, 5, PID, each) for each in range(1, 6))),
    )
    assert [table.names[each] for each in table.gpu.name] == [
        *names,
        "\N{REPLACEMENT CHARACTER}" * 2,
        "(unnamed)",
    ]


def test_the_environment_of_the_program_is_never_read(read):
    secret = ("name, value", ("TOKEN", "s3cret"))
    table = read(
        KERNEL=(KERNEL, (1, 2, 0, 7, 5, PID, 1)),
        META_DATA_CAPTURE=secret,
        TARGET_INFO_SYSTEM_ENV=secret,
    )
    assert "s3cret" not in repr(table)


@pytest.mark.parametrize(
    ("kernel_ns", "epoch_ns"), [(100, 1_779_782_330_176_752_435), (1_779_782_340_000_000_000, 0)]
)
def test_times_since_the_session_began_or_since_1970(read, kernel_ns, epoch_ns):
    table = read(
        KERNEL=(KERNEL, (kernel_ns, kernel_ns + 5, 0, 7, 5, PID, 1)),
        TARGET_INFO_SESSION_START_TIME=(
            "utcEpochNs, utcTime",
            (1_779_782_330_176_752_435, "2026-05-26"),
        ),
    )
    assert table.epoch_ns == epoch_ns


def test_a_capture_of_ranges_alone_and_one_of_nothing(read):
    assert len(read(NVTX_EVENTS=(RANGE,)).host) == 0
    with pytest.raises(PeakwardError, match="expected a capture with CUDA or NVTX in it, got an"):
        read(META_DATA_EXPORT=("name, value",))
    with pytest.raises(PeakwardError, match=r"got a database with the tables: StringIds, meta, at"):
        read(meta=("key, value",))
