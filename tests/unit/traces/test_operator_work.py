"""The FLOPs and bytes that an operator's maths needs, from its recorded arguments."""

import json

import pytest

from peakward.traces.operator_work import NotRecordedError, operator_bytes, operator_flops, parsed

ARGUMENTS = parsed(
    '[[[2, 3], [], [[2], [3]], [4.5]], ["float", "c10::Half", "TensorList", "odd"], '
    '["", "True", "[1, 2]", "[true, False]"]]'
)


def test_what_is_recorded():
    assert ARGUMENTS.shape(0) == (2, 3)
    assert ARGUMENTS.shape(1, rank=0) == ()
    assert ARGUMENTS.n_bytes(0) == 24
    assert ARGUMENTS.item_bytes(1) == 2
    assert [ARGUMENTS.is_tensor(i) for i in range(5)] == [True, True, False, False, False]
    assert ARGUMENTS.boolean(1) is True
    assert ARGUMENTS.listed(2) == [1, 2]
    assert ARGUMENTS.listed(3) == [True, False]


@pytest.mark.parametrize(
    "ask",
    [
        lambda: ARGUMENTS.shape(2),
        lambda: ARGUMENTS.shape(3),
        lambda: ARGUMENTS.shape(9),
        lambda: ARGUMENTS.shape(0, rank=3),
        lambda: ARGUMENTS.item_bytes(2),
        lambda: ARGUMENTS.boolean(0),
        lambda: ARGUMENTS.listed(1),
    ],
)
def test_what_is_not(ask):
    with pytest.raises(NotRecordedError):
        ask()


@pytest.mark.parametrize("shape", ["", "{}", "null", "[]", "[null, null, null]", "[1, 2]", "[[["])
def test_anything_may_stand_where_shapes_do(shape):
    with pytest.raises(NotRecordedError):
        parsed(shape).shape(0)


Q, K, V = [2, 3, 10, 4], [2, 3, 20, 4], [2, 3, 20, 6]
FULL = 2 * 2 * 3 * 10 * 20 * (4 + 6)


def counted(name, dims, **concrete):
    """`concrete` gives values by position: _6="True"."""
    values = [""] * 16
    for position, value in concrete.items():
        values[int(position[1:])] = value
    return operator_flops(name, parsed(json.dumps([dims, None, values])))


@pytest.mark.parametrize(
    ("name", "dims", "expected"),
    [
        ("aten::mm", [[3, 4], [4, 5]], 2 * 3 * 4 * 5),
        ("aten::mm", [[3, 4], [4, 5], [3, 5]], 2 * 3 * 4 * 5),
        ("aten::_scaled_mm", [[3, 4], [4, 5], [], []], 2 * 3 * 4 * 5),
        # Rows in groups, each times a matrix; their gradient; columns in groups; a batch.
        ("aten::_grouped_mm", [[30, 4], [6, 4, 5], [6]], 2 * 30 * 4 * 5),
        ("aten::_grouped_mm", [[4, 30], [30, 5], [6]], 2 * 4 * 30 * 5),
        ("aten::_grouped_mm", [[6, 3, 4], [4, 30], [6]], 2 * 3 * 4 * 30),
        ("aten::_grouped_mm", [[6, 3, 4], [6, 4, 5], []], 2 * 6 * 3 * 4 * 5),
        ("aten::addmm", [[5], [3, 4], [4, 5], [], []], 2 * 3 * 4 * 5),
        ("aten::bmm", [[7, 3, 4], [7, 4, 5]], 7 * 2 * 3 * 4 * 5),
        ("aten::baddbmm", [[7, 3, 5], [7, 3, 4], [7, 4, 5]], 7 * 2 * 3 * 4 * 5),
        ("aten::linear", [[6, 3, 4], [5, 4], [5]], 6 * 2 * 3 * 4 * 5),
        ("aten::matmul", [[6, 1, 3, 4], [7, 4, 5]], 6 * 7 * 2 * 3 * 4 * 5),
        ("aten::matmul", [[4], [4, 5]], 2 * 4 * 5),
        ("aten::mv", [[3, 4], [4]], 2 * 3 * 4),
        ("aten::dot", [[4], [4]], 2 * 4),
    ],
)
def test_matmuls(name, dims, expected):
    assert counted(name, dims) == expected


@pytest.mark.parametrize(
    ("name", "first", "causal", "passes"),
    [
        ("aten::_scaled_dot_product_flash_attention", 0, "_4", 1),
        ("aten::_scaled_dot_product_efficient_attention", 0, "_6", 1),
        ("aten::_scaled_dot_product_cudnn_attention", 0, "_6", 1),
        ("aten::_scaled_dot_product_flash_attention_backward", 1, "_11", 2),
        ("aten::_scaled_dot_product_efficient_attention_backward", 1, "_11", 2),
        ("aten::_scaled_dot_product_cudnn_attention_backward", 1, "_14", 2),
        ("peakward::flash_attention", 0, "_4", 1),
        ("peakward::flash_attention_backward", 2, "_8", 2),
    ],
)
def test_attention(name, first, causal, passes):
    dims = [[2, 3, 10, 6]] * first + [Q, K, V]
    assert counted(name, dims, **{causal: "False"}) == passes * FULL
    assert counted(name, dims, **{causal: "True"}) == passes * FULL // 2
    assert counted(name, dims) is None


def test_convolutions():
    dims, each = [[2, 6, 9, 9], [8, 3, 3, 3], [8]], 2 * 3 * 3 * 3
    stride, padding, dilation = {"_3": "[2, 2]"}, {"_4": "[1]"}, {"_5": "[1, 1]"}
    more = stride | padding | dilation
    expected = 2 * 8 * 5 * 5 * each
    assert counted("aten::convolution", dims, _6="False", **more) == expected
    assert counted("aten::convolution", dims, _6="True", **more) == 2 * 6 * 9 * 9 * each
    order = {"_2": "[1]", "_3": "[2]", "_4": "[1]"}
    assert counted("aten::cudnn_convolution", dims, **order) == expected
    backward = [[2, 8, 5, 5], *dims]
    for mask, passes in (("[True, True, False]", 2), ("[False, True, True]", 1)):
        found = counted("aten::convolution_backward", backward, _7="False", _10=mask)
        assert found == passes * expected


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("aten::add", [[3], [3]]),
        ("aten::mm", [[3, 4], [5, 6]]),
        ("aten::mm", [[3, 4]]),
        ("aten::mm", [[[3, 4], [4, 5]], []]),
        ("aten::bmm", [[3, 4], [4, 5]]),
        ("aten::matmul", [[], []]),
        ("aten::linear", [[4], [4]]),
        ("aten::convolution", [[2, 6, 9, 9], [8, 3, 3, 3]]),
        ("aten::mm", None),
    ],
)
def test_what_is_not_known(name, dims):
    assert counted(name, dims) is None


def test_a_stride_of_nothing():
    dims = [[2, 6, 9], [8, 6, 3]]
    assert counted("aten::cudnn_convolution", dims, _2="[0]", _3="[0]", _4="[1]") is None


F, H, N, B = "float", "c10::BFloat16", "long int", "bool"


@pytest.mark.parametrize(
    ("name", "dims", "types", "concrete", "expected"),
    [
        ("aten::relu", [[2, 3]], [F], [""], 2 * 6 * 4),
        ("aten::add", [[2, 3], [2, 3], []], [H, H, "Scalar"], None, 3 * 6 * 2),
        ("aten::mul", [[2, 3], [3]], [F, F], None, (6 + 3 + 6) * 4),
        ("aten::mul", [[2, 1], [1, 3]], [F, F], None, (2 + 3 + 6) * 4),
        ("aten::mul", [[2, 3], []], [H, "double"], None, 2 * 6 * 2),
        ("aten::add", [[2, 3], [2, 3]], [F, H], None, None),
        ("aten::relu", [[]], ["TensorList"], [""], None),
        ("aten::add_", [[2, 3], [3], []], [F, H, "Scalar"], None, 6 * 4 + 3 * 2 + 6 * 4),
        ("aten::copy_", [[2, 3], [3]], [F, H], None, 6 * 4 + 3 * 2),
        ("aten::zero_", [[2, 3]], [N], None, 6 * 8),
        ("aten::_softmax", [[2, 3], [], []], [H], ["", "-1", "False"], 2 * 6 * 2),
        ("aten::_softmax", [[2, 3], [], []], [H], ["", "-1", "True"], None),
        ("aten::_softmax_backward_data", [[2, 3]] * 2, [F, F], ["", "", "1", "15"], 6 * (8 + 2)),
        ("aten::_softmax_backward_data", [[2, 3]] * 2, [F, F], ["", ""], None),
        ("aten::sum", [[2, 3], []], [F, "ScalarList"], ["", "[-1]"], (6 + 2) * 4),
        ("aten::sum", [[2, 3], []], [F, ""], ["", ""], (6 + 1) * 4),
        ("aten::mm", [[2, 3], [3, 5]], [H, H], None, (6 + 15 + 10) * 2),
        ("aten::addmm", [[5], [2, 3], [3, 5]], [H, H, H], None, (5 + 6 + 15 + 10) * 2),
        ("aten::bmm", [[7, 2, 3], [7, 3, 5]], [H, H], None, 7 * (6 + 15 + 10) * 2),
        ("aten::mm", [[2, 3]], [H], None, None),
        ("aten::embedding", [[2, 3]], [F], None, None),
    ],
)
def test_inputs_and_outputs_each_once(name, dims, types, concrete, expected):
    assert operator_bytes(name, parsed(json.dumps([dims, types, concrete]))) == expected
