"""What real and odd files have in them, each in a trace of a few events."""

import gzip
import json

import numpy as np
import pytest

from peakward.records.errors import PeakwardError
from peakward.traces.readers.torch_json import read
from peakward.traces.table import NONE, Device, Direction, GpuKind, HostKind, JobRank


def op(name="aten::mm", ts=10, dur=5, pid=1, tid=1, cat="cpu_op", **args):
    event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return event | ({"args": args} if args else {})


def call(correlation=7, ts=12, pid=1, name="cudaLaunchKernel"):
    return op(name, ts, 1, pid, cat="cuda_runtime", correlation=correlation)


def kernel(name="gemm", ts=20, dur=3, cat="kernel", **args):
    ids = {"device": 0, "stream": 7, "correlation": 7}
    return op(name, ts, dur, 0, 7, cat, **(ids | args))


def trace(*events, **metadata):
    return {"schemaVersion": 1} | metadata | {"traceEvents": list(events)}


def names(table, columns):
    return [table.names[each] for each in columns.name]


def test_columns_of_a_step(write):
    table = read(
        write(
            trace(
                kernel("gemm", 20.001, 3.5),
                op("aten::mm", 10, 5, **{"Sequence number": 4, "Fwd thread id": 1}),
                call(7, 12.25),
                op("forward", 9, 9, cat="user_annotation"),
                op("nccl:all_reduce", 11, 1, cat="user_annotation"),
                op("model.py(3): f", 8, 12, cat="python_function"),
                op("Activity Buffer Request", 7, 1, cat="overhead"),
                baseTimeNanoseconds=1_700_000_000_000_000_000,
            )
        )
    )
    assert names(table, table.gpu) == ["gemm"]
    assert table.gpu.start_ns.tolist() == [20_001]
    assert table.gpu.end_ns.tolist() == [23_501]
    assert (table.gpu.device[0], table.gpu.stream[0], table.gpu.correlation[0]) == (0, 7, 7)
    assert table.gpu.graph.tolist() == table.gpu.n_bytes.tolist() == [NONE]
    assert table.host.start_ns.tolist() == [7_000, 8_000, 9_000, 10_000, 11_000, 12_250]
    assert table.host.kind.tolist() == [
        HostKind.OVERHEAD,
        HostKind.PYTHON,
        HostKind.RANGE,
        HostKind.OP,
        HostKind.RANGE,
        HostKind.CALL,
    ]
    assert table.host.sequence.tolist() == [NONE, NONE, NONE, 4, NONE, NONE]
    assert table.host.backward.tolist() == [False, False, False, True, False, False]
    assert table.host.correlation.tolist() == [NONE, NONE, NONE, NONE, NONE, 7]
    assert table.epoch_ns == 1_700_000_000_000_000_000
    assert (table.source, table.format, table.limits) == ("trace.json", "torch", ())


def test_equal_starts_stay_in_the_order_of_the_file(write):
    table = read(write(trace(op("b", 5), op("a", 5), op("c", 4), op("a", 5))))
    assert names(table, table.host) == ["c", "b", "a", "a"]


def test_what_is_no_work_of_the_gpu(write):
    triton = op("triton_poi_fused_0", stream=7, **{"kernel_backend": "triton"})
    projected = kernel("ProfilerStep#1", cat="gpu_user_annotation")
    wait = kernel("Stream Wait Event", cat="cuda_sync")
    table = read(write(trace(triton, projected, wait, kernel())))
    assert names(table, table.gpu) == ["gemm"]
    assert names(table, table.host) == ["triton_poi_fused_0"]


def test_no_gpu_events_at_all(write):
    table = read(write(trace(op())))
    assert (len(table.gpu), len(table.host)) == (0, 1)
    assert {each.dtype.name for each in (table.gpu.start_ns, table.host.start_ns)} == {"int64"}


def test_no_events_at_all(write):
    table = read(write(trace()))
    assert (len(table.gpu), len(table.host), table.processes, table.epoch_ns) == (0, 0, (), None)


@pytest.mark.parametrize("cat", ["kernel", "Kernel", "concurrent_kernel"])
def test_categories_of_kernels(write, cat):
    assert read(write(trace(kernel(cat=cat)))).gpu.kind.tolist() == [GpuKind.KERNEL]


@pytest.mark.parametrize(
    ("cat", "kind"),
    [
        ("Operator", HostKind.OP),
        ("Runtime", HostKind.CALL),
        ("cuda_driver", HostKind.CALL),
        ("cuda_runtime", HostKind.CALL),
    ],
)
def test_other_categories_of_the_host(write, cat, kind):
    assert read(write(trace(op(cat=cat)))).host.kind.tolist() == [kind]


@pytest.mark.parametrize(
    ("events", "maker"),
    [
        ([op(cat="async_npu")], "Ascend"),
        ([op("aclnnMatmul", cat="enqueue")], "Ascend"),
        ([op("npu::npu_fusion_attention")], "Ascend"),
        (
            [{"ph": "M", "name": "process_name", "pid": 4, "args": {"name": "Ascend Hardware"}}],
            "Ascend",
        ),
        ([op(cat="hpu_op")], "Gaudi"),
        ([op("hpu::fused_add")], "Gaudi"),
        ([op(cat="xpu_runtime"), kernel()], "XPU"),
        ([op(cat="mtia_ccp_events")], "MTIA"),
        ([op(cat="privateuse1_driver")], "PrivateUse1"),
        ([op("xla::mark_step")], "TPU"),
    ],
)
def test_an_accelerator_by_another_maker_is_not_taken_for_a_cpu(write, events, maker):
    with pytest.raises(
        PeakwardError, match=rf"got one of .*{maker}.*: such an accelerator is not supported"
    ):
        read(write(trace(op(), *events)))


@pytest.mark.parametrize("name", ["Ascend910B3", "Intel(R) Data Center GPU Max 1550", "MTT S4000"])
def test_a_device_by_another_maker_is_refused(write, name):
    with pytest.raises(PeakwardError, match="is not supported"):
        read(write(trace(op(), kernel(), deviceProperties=[{"id": 0, "name": name}])))


def test_words_of_makers_in_other_names_say_nothing(write):
    ranges = op("Intelligent Ascending TPU loader", cat="user_annotation")
    cpu = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}
    assert len(read(write(trace(op("mylib::npu_count"), ranges, cpu))).host) == 2


def test_copies_and_sets(write):
    table = read(
        write(
            trace(
                kernel("Memcpy HtoD (Pageable -> Device)", 1, cat="gpu_memcpy", bytes=4000),
                kernel("CopyDeviceToHost", 2, cat="gpu_memcpy", bytes="1"),
                kernel("Memcpy PtoP (Device -> Device)", 3, cat="Memcpy"),
                kernel("Memset (Device)", 4, cat="gpu_memset", bytes=16),
                kernel("HtoD in a kernel's name", 5),
                kernel("Memset (Device)", 6, cat="gpu_memset", bytes=2**53),
                kernel("Memset (Device)", 7, cat="gpu_memset", bytes=-2),
            )
        )
    )
    copy, set_, work = GpuKind.COPY, GpuKind.SET, GpuKind.KERNEL
    assert table.gpu.kind.tolist() == [copy, copy, copy, set_, work, set_, set_]
    assert table.gpu.n_bytes.tolist() == [4000, 1, NONE, 16, NONE, NONE, NONE]
    assert table.gpu.direction.tolist() == [
        Direction.HOST_TO_DEVICE,
        Direction.DEVICE_TO_HOST,
        Direction.PEER,
        *[Direction.UNKNOWN] * 4,
    ]


def test_integers_as_strings(write):
    ids = {"device": "2", "stream": "3", "correlation": "12"}
    table = read(write(trace(kernel(**ids), kernel(ts=21), call("12"))))
    assert table.gpu.device.tolist() == [2, 0]
    assert table.gpu.stream.tolist() == [3, 7]
    assert table.gpu.correlation.tolist() == [12, 7]
    assert table.host.correlation.tolist() == [12]


def test_device_and_stream_missing_or_senseless(write):
    bare = {"ph": "X", "cat": "kernel", "name": "k", "pid": 3, "tid": 9, "ts": 1, "dur": 1}
    named = {**bare, "pid": "GPU", "tid": "stream 9", "ts": 2}
    far = kernel(ts=3, device=2**40, stream=-5, correlation=2**70)
    nulls = kernel(ts=4, device=None, stream=None, correlation=None)
    table = read(write(trace(bare, named, far, nulls)))
    assert table.gpu.device.tolist() == [3, NONE, NONE, 0]
    assert table.gpu.stream.tolist() == [9, NONE, -5, 7]
    assert table.gpu.correlation.tolist() == [NONE, NONE, NONE, NONE]


def test_graph_of_a_kernel(write):
    table = read(write(trace(kernel(**{"graph id": 11, "graph node id": 5}), kernel(ts=30))))
    assert table.gpu.graph.tolist() == [11, NONE]


def test_correlations_are_kept_when_they_repeat(write):
    table = read(write(trace(call(7), kernel(ts=20), kernel(ts=30))))
    assert table.gpu.correlation.tolist() == [7, 7]


def test_shapes(write):
    dims = {"Input Dims": [[4, 5], []], "Input type": ["float", "Scalar"]}
    concrete = {**dims, "Concrete Inputs": ["", "2,\u2192"]}
    table = read(
        write(
            trace(op(ts=1, **dims), op(ts=2), op(ts=3, **dims), op(ts=4, **concrete), op(ts=5, a=1))
        )
    )
    assert table.host.shape.tolist() == [0, NONE, 0, 1, NONE]
    assert table.shapes[0] == '[[[4,5],[]],["float","Scalar"],null]'
    assert table.shapes[1].startswith('[[[4,5],[]],["float","Scalar"],["","2,')


def test_equal_shapes_are_one_however_they_are_laid_out(write):
    one = '{"ph":"X","name":"a","cat":"cpu_op","ts":1,"dur":1,"args":{"Input Dims":[[1,2]]}}'
    other = one.replace("[[1,2]]", "[\n  [1,\t2]]").replace('"ts":1', '"ts":2')
    table = read(write(f'{{"traceEvents":[{one},{other}]}}'))
    assert table.shapes == ("[[[1,2]],null,null]",)
    assert table.host.shape.tolist() == [0, 0]


def test_threads_and_their_names(write):
    about = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 5, "args": {"name": "autograd"}}
    labels = {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "args": {"labels": "CPU"}}
    huge = 2**63 + 5
    table = read(
        write(trace(op(tid=5), op(tid="5"), op(pid=huge, tid="main"), op(tid=None), about, labels))
    )
    assert table.processes == ("1", str(huge))
    assert [(each.process, each.tid, each.name) for each in table.threads] == [
        (0, "5", "autograd"),
        (1, "main", None),
        (0, "", None),
    ]
    assert table.host.thread.tolist() == [0, 0, 1, 2]


def test_work_belongs_to_the_process_that_launched_it(write):
    events = [call(7, 12, pid=100), call(8, 13, pid=200), op(pid=300)]
    table = read(write(trace(*events, kernel(correlation=8), kernel(ts=30, correlation=7))))
    assert [table.processes[each] for each in table.gpu.process] == ["200", "100"]


def test_launch_ids_that_repeat_between_processes(write):
    events = [call(7, 12, pid=100), call(7, 40, pid=200)]
    works = [kernel(ts=20), kernel(ts=50), kernel(ts=60, correlation=9)]
    table = read(write(trace(*events, *works)))
    assert [table.processes[each] for each in table.gpu.process] == ["100", "200", "0"]


def test_work_alone_keeps_its_own_pid(write):
    table = read(write(trace(kernel())))
    assert [table.processes[each] for each in table.gpu.process] == ["0"]


def test_metadata_before_and_after(write):
    device = {"id": 0, "name": "H100", "totalGlobalMem": 80, "numSms": 132, "warpSize": 32}
    text = (
        '{"deviceProperties": [%s, {"id": 1}], "nested": {"traceEvents": [1]}, "note": "}, {",'
        '"traceEvents": [], "distributedInfo": {"rank": 3, "world_size": "8"}, "x": [{}, {}],'
        '"baseTimeNanoseconds": 5}'
    )
    table = read(write(text % str(device).replace("'", '"')))
    assert table.devices == (Device(0, "H100", 80, 132), Device(1, None, None, None))
    assert table.job == JobRank(3, 8)
    assert table.epoch_ns == 5


def test_metadata_of_other_kinds_is_passed_over(write):
    odd = {"deviceProperties": 3, "distributedInfo": {"rank": None}, "baseTimeNanoseconds": "x"}
    table = read(write(trace(op(), **odd)))
    assert (table.devices, table.job, table.epoch_ns) == ((), None, None)


def test_top_level_array(write):
    assert len(read(write([op(), kernel()])).gpu) == 1


def test_the_profiler_before_kineto(write):
    cpu = {"name": "mm", "ph": "X", "ts": 1, "dur": 2, "tid": 1, "pid": "CPU functions", "args": {}}
    cuda = cpu | {"name": "gemm", "pid": "CUDA functions", "tid": 0}
    flow = {"name": "mm", "ph": "s", "ts": 1, "tid": 1, "pid": "CPU functions", "id": 1, "args": {}}
    table = read(write([cpu, flow, cuda]))
    assert table.host.kind.tolist() == [HostKind.OP]
    assert table.gpu.kind.tolist() == [GpuKind.KERNEL]


def test_beginnings_and_ends(write):
    def half(ph, ts, tid=1, **more):
        return {"ph": ph, "pid": 1, "tid": tid, "ts": ts} | more

    table = read(
        write(
            trace(
                half("B", 1.5, name="outer", cat="cpu_op"),
                half("E", 9.75),
                half("B", 2, name="inner", cat="user_annotation"),
                half("E", 1712195495505582, tid=2),
                half("B", 1712195495505579, tid=2, name="ends late", cat="cpu_op"),
                half("B", 4, tid=3, name="lost", cat="cpu_op"),
                half("E", 5),
            )
        )
    )
    assert names(table, table.host) == ["outer", "inner", "ends late"]
    assert table.host.duration_ns.tolist() == [8_250, 3_000, 3_000]
    assert table.limits == ("1 beginnings or ends left out: the other half is missing",)


def test_other_phases(write):
    events = [{"ph": ph, "name": "x", "ts": 1, "args": {"a": [{}]}} for ph in "stfiIRPCbneNODcvVa"]
    table = read(write(trace(*events, op())))
    assert (len(table.host), table.limits) == (1, ())


def test_events_that_are_none_are_counted(write):
    events = [
        op(),
        {"ph": "Z", "name": "unknown phase", "ts": 1},
        {"name": "no phase", "ts": 1},
        {"ph": "X", "ts": 1, "cat": "cpu_op"},
        op(name=3),
        op(pid=[1]),
        op(correlation={"a": 1}),
        3,
        None,
        "x",
        [],
    ]
    table = read(write(trace(*events)))
    assert len(table.host) == 1
    assert table.limits == (
        "10 entries left out: not an event with a known phase, a name and a numeric time",
    )


@pytest.mark.parametrize(
    "times",
    [
        {"ts": -1},
        {"dur": -1},
        {"dur": -0.001},
        {"ts": 1e300},
        {"ts": 18446744073709551.615},
        {"ts": 10**400},
        {"ts": "12"},
        {"ts": None},
        {"ts": [1]},
        {"dur": 2**62},
        {"dur": 2**53 // 1000 + 1},
    ],
)
def test_absurd_times_are_counted(write, times):
    table = read(write(trace(op() | times, op(name="good"))))
    assert names(table, table.host) == ["good"]
    assert table.limits == (
        "1 events left out: a time or duration is negative, absurd or no number",
    )


def test_unknown_categories_are_counted(write):
    table = read(write(trace(op(cat="what"), op(cat=None), op())))
    assert len(table.host) == 1
    assert table.limits == ("2 events left out: of categories unknown to this reader",)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([kernel(ts=-20), kernel(dur=-3)], "2 events left out: a time or duration is negative"),
        ([kernel(cat="what")], "1 events left out: of categories unknown to this reader"),
        ([{"ph": "B", "name": "x", "ts": 1}], "1 beginnings or ends left out: the other half"),
        ([3, kernel(ts=-1), kernel(ts=-2)], "2 events left out: a time or duration is negative"),
    ],
)
def test_a_file_whose_events_were_all_left_out_is_refused_with_the_reason_first(write, events, why):
    path = write(trace(*events))
    with pytest.raises(PeakwardError) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path.name}: {why}")
    assert f"got none among {len(events)}" in str(refused.value)


def test_a_file_without_events_is_a_trace_of_nothing(write):
    assert read(write(trace())).limits == ()


@pytest.mark.parametrize("more", ["", ', "a": [1]', ', "traceEvents": []'])
def test_another_array_of_events_is_said(write, more):
    one, two = json.dumps(op()), json.dumps([op(), op()])
    text = f'{{"a": 1, "traceEvents": [{one}], "traceEvents": {two}{more}}}'
    table = read(write(text.encode()))
    assert len(table.host) == 1
    assert table.limits == (
        "The key traceEvents is there more than once: only the first, with 1 events, was read",
    )


def test_another_array_of_events_after_an_empty_one_is_refused(write):
    text = f'{{"traceEvents": [], "traceEvents": [{json.dumps(op())}]}}'
    with pytest.raises(PeakwardError, match=r"\.json: The key traceEvents is there more than once"):
        read(write(text.encode()))


def test_no_duration_is_a_moment(write):
    event = op()
    del event["dur"]
    assert read(write(trace(event))).host.duration_ns.tolist() == [0]


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "nan", "inf", "-inf"])
def test_numbers_that_json_lacks(write, word):
    text = (
        f'{{"before": {word}, "traceEvents": [{{"ph":"X","cat":"gpu_memcpy","name":"is {word}, or",'
        f'"ts":1,"dur":2,"args":{{"bytes":{word},"bandwidth":{word}}}}}], "after": [{word}]}}'
    )
    table = read(write(text))
    assert (table.names, table.gpu.n_bytes.tolist()) == ((f"is {word}, or",), [NONE])


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (rb"\ud800", "\ufffd"),
        (rb"\\ud800", r"\ud800"),
        (rb"\ud83d\ude00", "\U0001f600"),
        (b"\xff", "\ufffd"),
        (b"C:\\Users", "C:\\Users"),
        (b"a\tb\nc", "a b c"),
        (rb"\"}, {\"ph\": \"X\"", '"}, {"ph": "X"'),
        (rb"\\\"", '\\"'),
        (b"}, {", "}, {"),
        (b"]}", "]}"),
    ],
)
def test_names_however_they_are_written(write, written, meant):
    event = b'{"ph":"X","cat":"cpu_op","name":"%b","ts":1,"dur":2}' % written
    table = read(write(b'{"traceEvents":[' + event + b"," + event + b"]}"))
    assert (table.names, len(table.host)) == ((meant,), 2)


def test_a_byte_order_mark_and_blanks(write):
    text = '\ufeff \n { "traceEvents" \n : [ \n ] \n } \n\n'
    assert len(read(write(text)).host) == 0


@pytest.mark.parametrize("name", ["trace.json.gz", "trace.json"])
def test_recorded_traces_are_read_whole(own_traces, write, name):
    path = own_traces / "h200_decoder_cuda_graphs.json.gz"
    table = read(write(gzip.decompress(path.read_bytes()), name))
    launches = np.isin(table.host.correlation, np.unique(table.gpu.correlation))
    assert (len(table.gpu), len(table.host), table.limits) == (1545, 24, ())
    assert np.count_nonzero(launches & (table.host.correlation != NONE)) == 9
    assert table.gpu.end_ns.max() - table.gpu.start_ns.min() == 16_633_498


def test_compiled_step(own_traces):
    table = read(own_traces / "h200_decoder_compiled.json.gz")
    assert (len(table.gpu), len(table.host)) == (432, 1533)
    assert np.count_nonzero(table.gpu.kind == GpuKind.KERNEL) == 395
    assert np.isin(table.gpu.correlation, table.host.correlation).all()


def fails(path):
    with pytest.raises(PeakwardError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith((f"{path.name}: expected ", "expected a readable"))
    return message


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"", "an empty file"),
        (b"\x00\x01\x02 nothing", "something that is not JSON"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b" \n\n ", "JSON that is cut off"),
        (b'"traceEvents"', "something that is not JSON"),
        (b'{"a": [1]}', "JSON without one"),
        (b'{"b": {"traceEvents": []}}', "JSON without one"),
        (b'{"traceEvents": {}}', "one that is not an array"),
        (b'{"traceEvents": null}', "one that is not an array"),
        (b'{"traceEv', "JSON that is cut off"),
        (b"[1, 2, 3]", "3 entries of which none is one"),
        (b'{"traceEvents": [1]}', "1 entries of which none is one"),
    ],
)
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_what_is_no_trace(write, content, got, name):
    assert got in fails(write(content, name))


def test_cut_anywhere(write):
    text = '{"a": 1, "traceEvents": [%s, %s], "z": {"y": [1]}}'
    text %= (json.dumps(op(a="}, {")), json.dumps(kernel()))
    assert len(read(write(text)).gpu) == 1
    for end in range(len(text)):
        assert "cut off" in fails(write(text[:end])) or end == 0


def test_cut_says_after_how_many_events(write):
    text = json.dumps(trace(op(), op(), kernel()))
    assert "is cut off after 2 events: record or copy it again" in fails(write(text[:-20]))


def test_cut_gzip(write):
    data = gzip.compress(b'{"traceEvents": [%b]}' % b", ".join([b"{}"] * 9999))
    for end in range(2, len(data), 7):
        assert "cut off" in fails(write(data[:end], "trace.json"))


def test_damaged_gzip(write):
    data = bytearray(gzip.compress(bytes(range(256)) * 99))
    data[-7] ^= 1
    assert "damage" in fails(write(bytes(data))) or "not JSON" in fails(write(bytes(data)))


def test_gzip_in_several_members(write):
    text = json.dumps(trace(op(), kernel())).encode()
    data = b"".join(gzip.compress(text[start : start + 9]) for start in range(0, len(text), 9))
    assert len(read(write(data + b"\0" * 99)).gpu) == 1


@pytest.mark.parametrize("after", ["x", "]", "}", ', "a"', ', "a": }'])
def test_text_after_the_end(write, after):
    fails(write('{"traceEvents": []' + after + "}"))
    fails(write("[]" + after))


def test_json_that_is_damaged_within(write):
    good = json.dumps(op())
    assert "expected JSON, got something else after 1 events" in fails(
        write(f"[{good}, {{'ph': 'X'}}, {good}]")
    )


def test_nesting_without_end(write):
    deep = "[" * 100_000
    event = json.dumps(op(a=1)).replace('"a": 1', '"a": ' + deep + deep.replace("[", "]"))
    table = read(write(f'{{"traceEvents": [{event}, {json.dumps(op())}]}}'))
    assert len(table.host) == 1
    assert table.limits[0].startswith("1 entries left out")
    fails(write(deep))
    fails(write('{"a": ' + deep))
    fails(write('{"traceEvents": ' + deep))


def test_no_such_file(tmp_path):
    assert "No such file" in fails(tmp_path / "absent.json")
    assert "Is a directory" in fails(tmp_path)


COLLECTIVE = {
    "Collective name": "allreduce",
    "In msg nelems": 64,
    "dtype": "Float",
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
}


def test_what_a_collective_is_told_to_be(write):
    rows = [
        kernel("ncclDevKernel_AllReduce", 20, **COLLECTIVE, Seq=3),
        kernel("ncclDevKernel_AllReduce", 30, **COLLECTIVE),
        kernel("ncclDevKernel_AllReduce", 40, **{**COLLECTIVE, "In msg nelems": {"odd": [1]}}),
        kernel("ncclDevKernel_AllReduce", 50, **{"Collective name": "allreduce"}),
        kernel("gemm", 60),
    ]
    table = read(write(trace(*rows)))
    told = [None if at == NONE else table.names[at] for at in table.gpu.collective]
    assert told == [
        '"allreduce" 64 "Float" "0" "[0, 1]" 3',
        '"allreduce" 64 "Float" "0" "[0, 1]" null',
        '"allreduce" {"odd": [1]} "Float" "0" "[0, 1]" null',
        None,
        None,
    ]


def test_the_words_of_a_collective_are_bounded(write):
    table = read(write(trace(kernel(**{**COLLECTIVE, "Process Group Ranks": "9" * 100_000}))))
    assert max(map(len, table.names)) < 5_000
