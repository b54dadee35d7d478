"""What the host called."""

import pytest

from peakward.records.profile import HostCall
from peakward.traces.calls import CallKind, call_kind, call_kinds, host_calls, plain_name
from peakward.traces.table import HostKind

from .handmade import Host, table


def python(start, end, name):
    return Host(start, end, name, kind=HostKind.PYTHON)


def test_calls_by_plain_name_the_longest_first():
    rows = [
        Host(0, 10, "cudaFree"),
        Host(20, 25, "cudaMalloc_v3020"),
        Host(30, 60, "cudaFree"),
        Host(0, 90, "aten::add", kind=HostKind.OP),
    ]
    found = host_calls(table(host=rows))
    assert found.calls == (
        HostCall(name="cudaFree", n=2, sum_ns=40, longest_ns=30),
        HostCall(name="cudaMalloc", n=1, sum_ns=5, longest_ns=5),
    )
    assert (found.n_python, found.collections) == (0, None)


def test_collections_as_torch_names_them():
    rows = [
        python(0, 50, "<built-in function collect>"),
        python(0, 90, "train.py(12): step"),
        python(60, 70, "<built-in method collect_all of object at 0x7f>"),
    ]
    found = host_calls(table(host=rows))
    assert found.n_python == 3
    assert found.collections == HostCall(name="gc.collect", n=1, sum_ns=50, longest_ns=50)


def test_of_nothing_nothing():
    assert host_calls(table()).calls == ()


NAMES = {
    CallKind.LAUNCH: (
        "cudaLaunchKernel cudaLaunchKernel_v7000 cudaLaunchKernel_ptsz_v7000 cudaLaunchKernelExC "
        "cuLaunchKernel cuLaunchKernelEx cudaLaunchCooperativeKernel hipLaunchKernel "
        "hipModuleLaunchKernel hipExtModuleLaunchKernel hipExtLaunchKernel hipHccModuleLaunchKernel"
    ),
    CallKind.GRAPH: "cudaGraphLaunch cudaGraphLaunch_v10000 cuGraphLaunch hipGraphLaunch",
    CallKind.MOVE: (
        "cudaMemcpyAsync cudaMemcpyAsync_v3020 cuMemcpyHtoDAsync_v2 cudaMemsetAsync cudaMemset "
        "hipMemcpyAsync hipMemcpyHtoDAsync cuMemsetD8Async cuMemcpyDtoD_v2 cudaMemcpyPeer hipMemsetAsync"
    ),
    CallKind.BLOCKING_MOVE: (
        "cudaMemcpy cudaMemcpy_v3020 cuMemcpyDtoH_v2 cudaMemcpy2D cudaMemcpyToSymbol hipMemcpy "
        "hipMemcpyWithStream hipMemcpyDtoH"
    ),
    CallKind.SYNCHRONISE: (
        "cudaDeviceSynchronize cudaStreamSynchronize_v3020 cudaEventSynchronize cuCtxSynchronize "
        "cuStreamSynchronize hipDeviceSynchronize hipStreamSynchronize hipEventSynchronize"
    ),
    CallKind.STREAM_WAIT: (
        "cudaStreamWaitEvent cudaStreamWaitEvent_v3020 cuStreamWaitEvent hipStreamWaitEvent"
    ),
    CallKind.OTHER: (
        "cudaMalloc cudaFree cudaEventQuery cudaStreamIsCapturing cudaEventRecord cuMemAlloc_v2 "
        "cuLaunchHostFunc cudaGraphInstantiate cudaMemGetInfo hipGetDevicePropertiesR0600 aten::item"
    ),
}


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for kind, names in NAMES.items() for name in names.split()]
)
def test_kind_of_a_call(name, kind):
    assert call_kind(name) == kind


def test_nsight_suffixes_go():
    assert plain_name("cudaStreamGetCaptureInfo_v2_v11030") == "cudaStreamGetCaptureInfo"
    assert plain_name("cudaMemcpy2D") == "cudaMemcpy2D"


def test_only_calls_have_a_kind():
    trace = table(host=[Host(0, 1), Host(1, 2, kind=HostKind.OP), Host(2, 3, "cudaGraphLaunch")])
    assert call_kinds(trace).tolist() == [CallKind.LAUNCH, CallKind.OTHER, CallKind.GRAPH]
    assert call_kinds(table()).tolist() == []
