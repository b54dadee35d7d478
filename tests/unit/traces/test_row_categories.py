"""Categories by row."""

import gzip
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.host_work import with_host_work
from peakward.traces.kernel_names import short_name
from peakward.traces.row_categories import CATEGORIES, Category, category, row_categories
from peakward.traces.table import GpuKind, HostKind

from .handmade import Gpu, Host, table
from .real import FOLDER


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


HERE = Path(__file__).parent
NAMES = [
    (name, Category(expected))
    for line in (HERE / "kernel_names.tsv").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
    for name, expected in [line.split("\t")]
]

FILES = sorted(FOLDER.glob("*.json.gz")) + sorted(FOLDER.glob("*.sqlite"))
KINDS = {"kernel": GpuKind.KERNEL, "gpu_memcpy": GpuKind.COPY, "gpu_memset": GpuKind.SET}


@pytest.mark.parametrize(("name", "expected"), NAMES, ids=[name[:60] for name, _ in NAMES])
def test_a_kernel_is_of_its_category(name: str, expected: Category) -> None:
    assert category(name, GpuKind.KERNEL) is expected


def test_every_category_has_a_name_in_the_table() -> None:
    of_the_host_alone = {Category.FRAMEWORK}
    assert {expected for _, expected in NAMES} == set(Category) - of_the_host_alone


@pytest.mark.parametrize("kind", [GpuKind.COPY, GpuKind.SET])
def test_copies_and_sets_are_memory_whatever_they_are_called(kind: GpuKind) -> None:
    assert category("ampere_sgemm_128x64_nn", kind) is Category.MEMORY


def test_kernels_of_one_short_name_are_of_one_category() -> None:
    categories: dict[str, set[Category]] = {}
    for name, expected in NAMES:
        categories.setdefault(short_name(name), set()).add(expected)
    assert {short for short, of in categories.items() if len(of) > 1} == set()


@pytest.mark.skipif(not FILES, reason=f"no traces in {FOLDER}; PEAKWARD_TRACES says where they are")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_hardly_any_time_of_a_real_trace_goes_unnamed(path: Path) -> None:
    time: Counter[Category] = Counter()
    for name, kind, duration in _durations(path):
        time[category(name, kind)] += duration
    assert time.total() > 0
    assert time[Category.OTHER] < 0.02 * time.total()


def _durations(path: Path) -> Iterator[tuple[str, GpuKind, float]]:
    if path.suffix == ".sqlite":
        with sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True) as database:
            for name, duration in database.execute(
                "SELECT value, SUM(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
                "JOIN StringIds ON id = k.demangledName GROUP BY value"
            ):
                yield name, GpuKind.KERNEL, duration
        return
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if (kind := KINDS.get(str(event.get("cat", "")).lower())) is not None:
            yield event["name"], kind, event.get("dur", 0)


HOSTILE = [
    "a" * 100_000,
    "<" * 100_000,
    "void " + "f<" * 50_000,
    "f<" + "ReduceOp<" * 11_000 + ">" * 11_001,
    "f" + ">" * 100_000,
    "f" + "()" * 50_000,
    "::" * 50_000,
    "_ZN" + "9" * 100_000,
    "_ZN1a" * 20_000,
    "[lambda(" * 12_500,
    "Adam" * 25_000,
    "w1a1_" * 20_000,
    "chunk_parallel_" * 6_000,
    "_moe_" * 20_000,
    "elementwise_kernel<" + "void f(" * 14_000 + ")>",
    "triton_red_fused_" + "_" * 100_000,
    "triton_poi_fused_" + "add_" * 25_000,
    "triton_poi_fused_" + "nobody_" * 14_000,
    "triton_poi_fused_0_" + "0d" * 50_000,
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: name[:20])
def test_a_hostile_name_takes_no_more_than_a_few_passes(name: str) -> None:
    assert category(name, GpuKind.KERNEL) in Category
    assert short_name(name)


@given(st.text(alphabet="_Za9<>(){}[]:,& *#ILENS~.\nλ", max_size=80) | st.text(max_size=40))
def test_any_text_is_a_name(name: str) -> None:
    assert category(name, GpuKind.KERNEL) in Category
    short_name(name)
