"""What is on the critical path, added up."""

import numpy as np
import pytest

from peakward.traces.breakdown import breakdown
from peakward.traces.critical_path import PathKind, critical_path
from peakward.traces.launches import launch_rows
from peakward.traces.table import GpuKind, HostKind

from .handmade import Gpu, Host, table
from .real import A100, H100_BERT, H100_NSYS, MI300_BERT, RANK_0, RANK_1, communication, real


def path(trace):
    return critical_path(trace, launch_rows(trace), communication(trace))


def test_by_kind_and_name():
    found = path(
        table(
            [
                Gpu(10, 50, "gemm", correlation=1),
                Gpu(50, 60, "nccl", stream=7),
                Gpu(61, 70, "copy", kind=GpuKind.COPY),
                Gpu(120, 130, "gemm", correlation=2),
            ],
            [
                Host(5, 8, correlation=1),
                Host(20, 75, "cudaDeviceSynchronize"),
                Host(80, 200, "step", kind=HostKind.RANGE),
                Host(90, 115, "aten::mm", kind=HostKind.OP),
                Host(100, 112, correlation=2),
            ],
        )
    )
    assert found.span_ns == 120
    shares = {(each.kind, each.name): (each.n, each.ns) for each in found.shares}
    assert shares == {
        (PathKind.COMPUTE, "gemm"): (2, 50),
        (PathKind.COMMUNICATION, "nccl"): (1, 10),
        (PathKind.QUEUED, None): (1, 1),
        (PathKind.MEMORY, "copy"): (1, 9),
        (PathKind.SYNCHRONISATION, None): (1, 5),
        (PathKind.HOST, None): (1, 5),
        (PathKind.HOST, "step"): (1, 10),
        (PathKind.OPERATOR, "aten::mm"): (1, 10),
        (PathKind.CALL, "cudaLaunchKernel"): (1, 12),
        (PathKind.LAUNCH_LATENCY, None): (1, 8),
    }
    assert [each.ns for each in found.shares] == sorted(
        (ns for _, ns in shares.values()), reverse=True
    )
    assert {k: ns for k, ns in found.by_kind_ns.items() if ns} == {
        "compute": 50,
        "communication": 10,
        "memory": 9,
        "operator": 10,
        "call": 12,
        "host": 15,
        "launch_latency": 8,
        "queued": 1,
        "synchronisation": 5,
    }


@pytest.mark.parametrize("name", [A100, RANK_0, RANK_1, H100_BERT, MI300_BERT, H100_NSYS])
def test_the_path_of_a_real_trace_is_as_long_as_its_span(name):
    trace = real(name)
    found = path(trace)
    assert found.span_ns == breakdown(trace, communication(trace)).span_ns
    assert found.span_ns == sum(found.by_kind_ns.values()) == sum(each.ns for each in found.shares)
    assert found.by_kind_ns["unknown"] == 0


def test_a_capture_that_synchronises_has_the_gpus_work_on_its_path():
    found = path(real(H100_NSYS))
    assert found.shares[0].kind is PathKind.COMPUTE
    assert "flash_fwd" in (found.shares[0].name or "")
    assert found.by_kind_ns["compute"] / found.span_ns > 0.6


def test_a_training_that_the_host_holds_back_has_the_host_on_its_path():
    found = path(real(A100))
    host = sum(found.by_kind_ns[kind] for kind in ("operator", "call", "host"))
    assert host / found.span_ns > 0.99


def test_every_kernel_of_a_graph_is_on_the_path():
    works = [Gpu(at, at + 9, "k", correlation=1) for at in range(10, 1010, 10)]
    found = path(table(works, [Host(0, 8, "cudaGraphLaunch", 1)]))
    assert (found.shares[0].name, found.shares[0].n) == ("k", 100)
    assert found.by_kind_ns["queued"] == 99


def test_no_work_no_path():
    found = critical_path(
        table(host=[Host(0, 1)]), np.zeros(0, dtype=np.int32), np.zeros(0, dtype=bool)
    )
    assert (found.span_ns, found.shares) == (0, ())
