"""Categories by row."""

from peakward.traces.host_work import with_host_work
from peakward.traces.row_categories import CATEGORIES, row_categories
from peakward.traces.table import GpuKind, HostKind

from .handmade import Gpu, Host, table


def told(of):
    return [CATEGORIES[code].value for code in row_categories(of)]


def test_kernels_by_name_and_copies_by_kind():
    of = table([Gpu(0, 1, "gemm"), Gpu(1, 2, "gemm", kind=GpuKind.COPY), Gpu(2, 3, "softmax")])
    assert told(of) == ["matmul", "memory", "softmax"]


def test_operators_where_there_is_no_gpu():
    ops = [Host(i, i + 1, name, kind=HostKind.OP) for i, name in enumerate(("aten::mm", "aten::t"))]
    assert told(with_host_work(table(host=ops))) == ["matmul", "framework"]


def test_nothing_has_none():
    assert told(table()) == []
