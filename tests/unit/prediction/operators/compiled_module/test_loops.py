"""How torch's operators are lowered to loops."""

import pytest

from peakward.prediction.operators.tape import BFLOAT


def told(trace):
    return [(each.kind, each.n, each.r) for each in trace.loops]


def test_an_elementwise_operator_is_one_loop(trace):
    x = trace.given(4, 100)
    trace.call("silu", x, made=(4, 100))
    assert told(trace) == [("pointwise", 400, 1)]


def test_an_unknown_operator_is_a_call(trace):
    x = trace.given(4, 100)
    trace.call("some_new_operator", x, made=(4, 100))
    assert [each.kind for each in trace.loops] == ["call"]


def test_complex_numbers_are_torchs(trace):
    """Inductor writes no code for them."""
    x = trace.given(4, 100, dtype="complex64")
    trace.call("mul", x, x, made=(4, 100), dtype="complex64")
    assert [each.kind for each in trace.loops] == ["call"]


@pytest.mark.parametrize(
    ("given", "made", "expected"),
    [
        ((4, 100), (4, 1), ("inner", 4, 100)),
        ((4, 100), (4,), ("inner", 4, 100)),
        ((64, 100), (1, 100), ("outer", 100, 64)),
        ((8, 8, 100), (1, 1, 100), ("outer", 100, 64)),
        ((4, 100), (), ("inner", 1, 400)),
        ((2, 5, 4, 100), (2, 5, 1, 100), ("pointwise", 1000, 1)),
    ],
)
def test_a_sum_goes_along_the_rows_or_across_them_and_a_short_one_is_unrolled(
    trace, given, made, expected
):
    trace.call("sum", trace.given(*given), made=made)
    assert told(trace) == [expected]


def test_a_norm_is_the_figures_of_its_rows_and_a_loop(trace):
    x, weight = trace.given(4, 100), trace.parameter(100)
    y, mean, rstd = trace.call("native_layer_norm", x, weight, made=[(4, 100), (4, 1), (4, 1)])
    assert told(trace) == [("inner", 4, 100), ("inner", 4, 100), ("pointwise", 400, 1)]
    assert [read.value for read in trace.loops[-1].reads] == [x, mean, rstd, weight]
    assert trace.loops[-1].writes == (y,)


def test_its_gradient_sums_along_the_rows_for_the_input_and_across_them_for_the_weights(trace):
    gradient, x, weight = trace.given(64, 100), trace.given(64, 100), trace.parameter(100)
    mean, rstd = trace.given(64, 1), trace.given(64, 1)
    trace.call(
        "native_layer_norm_backward",
        *(gradient, x, mean, rstd, weight),
        made=[(64, 100), (100,), (100,)],
    )
    assert told(trace) == [
        *(("pointwise", 6400, 1), ("inner", 64, 100), ("pointwise", 6400, 1)),
        *(("outer", 100, 64), ("outer", 100, 64)),
    ]
    (normalised,) = trace.loops[0].writes
    assert [read.value for read in trace.loops[-1].reads] == [gradient, normalised]


def test_of_the_loss_s_rows_one_element_each_is_read(trace):
    rows, targets = trace.given(64, 1000), trace.given(64, dtype="int64")
    trace.call("nll_loss_forward", rows, targets, made=[(), ()])
    assert [read.n_bytes for read in trace.loops[0].reads] == [64 * 4, 64 * 8]


def test_the_gradient_of_a_table_is_added_up_in_fp32(trace):
    gradient, places = trace.given(64, 100, dtype=BFLOAT), trace.given(64, dtype="int64")
    trace.call("embedding_dense_backward", gradient, places, made=(5000, 100), dtype=BFLOAT)
    assert [each.kind for each in trace.loops] == ["pointwise", "scatter", "pointwise"]
    assert trace.values[trace.loops[1].writes[0]].operand.dtype == "float32"


def test_a_narrow_product_is_padded_where_it_is_bound_by_its_arithmetic(trace):
    x, head = trace.given(4096, 768, dtype=BFLOAT), trace.given(768, 50257, dtype=BFLOAT)
    trace.call("mm", x, head, made=(4096, 50257), dtype=BFLOAT)
    pad, product = trace.loops
    assert (pad.name, pad.n) == ("constant_pad_nd", 768 * 50264)
    assert [read.operand.shape for read in product.reads] == [(4096, 768), (768, 50264)]


@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [(4096, 50256, BFLOAT), (4096, 50257, "float32"), (64, 1001, BFLOAT)],
)
def test_an_aligned_a_wide_and_a_small_one_are_not(trace, rows, columns, dtype):
    x, head = trace.given(rows, 768, dtype=dtype), trace.given(768, columns, dtype=dtype)
    trace.call("mm", x, head, made=(rows, columns), dtype=dtype)
    assert [each.kind for each in trace.loops] == ["call"]
