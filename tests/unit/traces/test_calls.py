"""What a call does, by its name in either maker's runtime or driver."""

import pytest

from peakward.traces.calls import CallKind, call_kind, call_kinds, plain_name
from peakward.traces.table import HostKind

from .handmade import Host, table

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
