"""Categories by row."""

import gzip
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward import kernels
from peakward.traces.category_rules import Category
from peakward.traces.host_work import with_host_work
from peakward.traces.kernel_names import short_name
from peakward.traces.row_categories import (
    CATEGORIES,
    category,
    fused,
    fused_ops,
    operator_category,
    operators,
    row_categories,
)
from peakward.traces.table import GpuKind, HostKind
from peakward.traces.trace import Trace

from .handmade import Gpu, Host, table
from .real import FOLDER
from .rows import Rows


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


def test_every_kernel_of_ours_is_of_a_category() -> None:
    """By the functions that are launched; that of a micro-benchmark has no purpose in a model."""
    files = (Path(kernels.__file__).parent / "ops").rglob("*.py")
    source = "\n".join(path.read_text(encoding="utf-8") for path in files)
    compiled = set(re.findall(r"^@(?:triton|gluon)\.jit.*\n(?:@.*\n)*def (\w+)", source, re.M))
    launched = compiled & set(re.findall(r"\blaunch\(\s*(\w+)", source))
    assert len(launched) > 40
    unnamed = {name for name in launched if category(name, GpuKind.KERNEL) is Category.OTHER}
    assert unnamed == {"_sweep"}


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


OPERATOR_NAMES = {
    Category.MATMUL: "aten::mm aten::addmm aten::bmm aten::baddbmm aten::linear aten::matmul",
    Category.SOFTMAX: "aten::_softmax aten::softmax aten::_log_softmax_backward_data",
    Category.LOSS: "aten::nll_loss_forward aten::cross_entropy_loss",
    Category.NORMALISATION: "aten::native_layer_norm aten::rms_norm aten::_fused_rms_norm",
    Category.ATTENTION: "aten::_scaled_dot_product_flash_attention_for_cpu",
    Category.CONVOLUTION: "aten::mkldnn_convolution aten::conv2d",
    Category.EMBEDDING: "aten::embedding aten::embedding_dense_backward aten::index_select",
    Category.OPTIMIZER: "aten::_fused_adamw_ aten::_fused_sgd_",
    Category.REDUCTION: "aten::mean aten::sum aten::cumsum aten::argmax aten::linalg_vector_norm",
    Category.COPY: "aten::copy_ aten::_to_copy aten::clone aten::contiguous aten::cat aten::zero_",
    Category.ELEMENTWISE: "aten::rsqrt aten::mul_ aten::_foreach_add_ aten::silu aten::masked_fill_ "
    "aten::bitwise_not aten::ge aten::native_dropout",
    Category.FRAMEWORK: "aten::view aten::transpose aten::t aten::expand aten::as_strided "
    "aten::detach detach aten::empty_like aten::item aten::_local_scalar_dense MmBackward0 "
    "torch::autograd::AccumulateGrad torch::autograd::CopySlices",
    Category.COMMUNICATION: "c10d::allreduce_",
    Category.SORT: "aten::topk aten::sort",
    Category.OTHER: "CompiledFunction CompiledFunctionBackward mine::operator",
}


@pytest.mark.parametrize(
    ("name", "category"),
    [(name, kind) for kind, names in OPERATOR_NAMES.items() for name in names.split()],
)
def test_an_operator_is_of_a_category(name, category):
    assert operator_category(name) == category


def test_a_node_of_autograd_is_the_frameworks():
    node = "autograd::engine::evaluate_function: MmBackward0"
    assert operator_category(node) == Category.FRAMEWORK


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        (
            "triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_3",
            ("_to_copy", "add", "mean", "mul", "pow", "rsqrt"),
        ),
        (
            "triton_per_fused__fused_rms_norm__fused_rms_norm_backward__unsafe_view_add_view_1",
            ("_fused_rms_norm", "_fused_rms_norm_backward", "_unsafe_view", "add", "view"),
        ),
        (
            "triton_poi_fused__unsafe_view_add_cat_mul_split_split_with_sizes_sub_transpose_view_1",
            (
                "_unsafe_view",
                "add",
                "cat",
                "mul",
                "split",
                "split_with_sizes",
                "sub",
                "transpose",
                "view",
            ),
        ),
        ("triton_poi_fused_copy__1", ("copy_",)),
        ("triton_poi_fused_add_0_0d1d2de", ("add",)),
        ("triton_tem_fused_flex_attention_backward_zeros_1", ("flex_attention_backward", "zeros")),
        ("model_triton_poi_fused_add_0", ("add",)),
        ("triton_for_fused_0", ()),
        ("triton_red_fused", ()),
        ("triton_mm_14", ()),
        ("ampere_sgemm_128x64_nn", ()),
    ],
)
def test_operators_of_a_fused_kernel(name: str, ops: tuple[str, ...]) -> None:
    assert fused_ops(name) == ops


def test_what_no_operator_accounts_for_stays_together() -> None:
    name = "triton_red_fused__to_copy_add_copy__fused_add_rms_norm_moe_forward_shared_3"
    assert fused_ops(name) == (
        "_to_copy",
        "add",
        "copy_",
        "fused_add",
        "rms_norm",
        "moe_forward_shared",
    )


def test_the_kind_is_read() -> None:
    kernel = fused("triton_spl_fused_cumsum_0")
    assert kernel is not None
    assert kernel.kind == "spl"


@given(st.sets(st.sampled_from(sorted(operators())), min_size=1, max_size=6))
def test_a_joined_name_comes_apart_into_itself(chosen: set[str]) -> None:
    """Which operators an ambiguous name is made of nobody can tell; that it is made of them we can."""
    pieces = fused_ops(f"triton_poi_fused_{'_'.join(sorted(chosen))}_7")
    assert "_".join(pieces) == "_".join(sorted(chosen))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("triton_tem_fused__scaled_dot_product_flash_attention_mm_0", Category.ATTENTION),
        ("triton_tem_fused_convolution_relu_0", Category.CONVOLUTION),
        ("triton_red_fused__log_softmax_nll_loss_forward_0", Category.LOSS),
        ("triton_red_fused__softmax_native_layer_norm_0", Category.SOFTMAX),
        ("triton_per_fused_embedding_native_layer_norm_0", Category.NORMALISATION),
        ("triton_per_fused_embedding_sum_0", Category.EMBEDDING),
        ("triton_for_fused__fused_adamw_0", Category.OPTIMIZER),
        ("triton_per_fused_sort_sum_0", Category.SORT),
        ("triton_per_fused_add_sum_0", Category.REDUCTION),
        ("triton_poi_fused_add_sum_0", Category.ELEMENTWISE),
        ("triton_poi_fused_rsqrt_0", Category.ELEMENTWISE),
        ("triton_poi_fused__to_copy_clone_transpose_view_0", Category.COPY),
        ("triton_poi_fused__to_copy_add_view_0", Category.ELEMENTWISE),
        ("triton_poi_fused__scaled_mm__to_copy_0", Category.COPY),
        ("triton_poi_fused__scaled_mm__to_copy_clamp_div_1", Category.ELEMENTWISE),
        ("triton_red_fused__to_copy_abs_amax_mm_backward_2", Category.REDUCTION),
        ("triton_red_fused__to_copy_add_mean_mm_backward_mul_pow_rsqrt_3", Category.NORMALISATION),
        ("triton_per_fused_addmm_native_layer_norm_4", Category.NORMALISATION),
        ("triton_red_fused_mm_mul_sum_5", Category.REDUCTION),
        ("triton_poi_fused_mm_6", Category.COPY),
        ("triton_poi_fused_bmm_constant_pad_nd_transpose_7", Category.COPY),
        ("triton_poi_fused_addmm_relu_8", Category.ELEMENTWISE),
        ("triton_poi_fused_addmm_9", Category.ELEMENTWISE),
        ("triton_poi_fused_convolution_relu_10", Category.ELEMENTWISE),
        ("triton_poi_fused__scaled_dot_product_flash_attention_clone_11", Category.COPY),
        (
            "triton_red_fused__scaled_dot_product_flash_attention_backward_sum_12",
            Category.REDUCTION,
        ),
        ("triton_tem_fused__to_copy_add_mm_13", Category.MATMUL),
        ("triton_tem_fused__scaled_mm__to_copy_14", Category.MATMUL),
        ("triton_red_fused_mm_t_view_15", Category.MATMUL),
        ("triton_red_fused_mv_16", Category.MATMUL),
        ("triton_unk_fused_0", Category.OTHER),
        ("triton_unk_fused_add_0", Category.ELEMENTWISE),
    ],
)
def test_a_fused_kernel_is_of_the_category_that_shapes_it(name: str, expected: Category) -> None:
    assert category(name, GpuKind.KERNEL) is expected


def test_only_templates_are_products_of_a_compiled_step() -> None:
    """What casts, scales and pads around products was 14% of the time of matmuls here."""
    step = Rows()
    kernels = {
        "triton_tem_fused__scaled_mm_3": 40,
        "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNT": 46,
        "triton_poi_fused__scaled_mm__to_copy_clamp_mul_0": 5,
        "triton_red_fused__to_copy_abs_amax_mm_backward_2": 6,
        "triton_poi_fused_addmm_gelu_1": 3,
    }
    at = 0
    for name, length in kernels.items():
        step.launch(name, at, gpu=(at + 10, at + 10 + length))
        at += 100
    table, _ = step.table()
    found = Trace.of(table).kernels()
    matmul = [each for each in found if each.category == Category.MATMUL]
    assert sum(each.total_ns for each in matmul) == 86
    assert sum(each.total_ns for each in found) == 100
