import json

import pytest

from peakward.traces.arguments import parsed
from peakward.traces.operator_bytes import n_bytes

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
    assert n_bytes(name, parsed(json.dumps([dims, types, concrete]))) == expected
