"""Operators are found again in the names that Inductor joins them into."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.traces.inductor import fused, fused_ops, operators
from peakward.traces.row_categories import Category, category
from peakward.traces.table import GpuKind
from peakward.traces.trace import Trace

from .rows import Rows


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
