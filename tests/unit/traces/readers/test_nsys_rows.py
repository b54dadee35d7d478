"""Names that torch's emit_nvtx writes, and names that look alike."""

import json

import pytest

from peakward.traces.readers.nsys_rows import Label, label
from peakward.traces.table import NONE, HostKind

OP, RANGE = HostKind.OP, HostKind.RANGE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aten::copy_, op_id = 7", Label("aten::copy_", OP, NONE, None)),
        ("aten::mul, seq = 0, op_id = 7", Label("aten::mul", OP, 0, None)),
        ("MulBackward0, seq = 5, op_id = 9", Label("MulBackward0", OP, 5, None)),
        (
            "aten::cat, seq = 5, op_id = 9, sizes = [[4, 256], [], [0]], "
            "input_op_ids = [(8,0), (3,1)]",
            Label("aten::cat", OP, 5, "[[[4, 256], [], [0]],null,null]"),
        ),
        (
            "FSDP::pre_forward (blocks.0), op_id = 4",
            Label("FSDP::pre_forward (blocks.0)", RANGE, NONE, None),
        ),
        ("nccl:all_to_all, op_id = 4", Label("nccl:all_to_all", RANGE, NONE, None)),
        ("c10d::allreduce_, op_id = 4", Label("c10d::allreduce_", OP, NONE, None)),
        ("aten::mul", Label("aten::mul", RANGE, NONE, None)),
        ("", Label("", RANGE, NONE, None)),
    ],
)
def test_labels(text, expected):
    assert label(text) == expected
    if expected.shape is not None:
        dims, types, values = json.loads(expected.shape)
        assert (types, values) == (None, None)
        assert all(isinstance(each, list) for each in dims)


@pytest.mark.parametrize(
    "text",
    [
        "step, seq = twelve",
        "step, seq = 12 of 100",
        "step, op_id = 3, sizes = [[007]]",
        "step, op_id = 3, sizes = [[1,, 2]]",
        "step, seq = " + "9" * 40,
        ", sizes = [" * 10_000,
        ", op_id = 1" * 10_000,
        "a, op_id = 1, sizes = [" + "[1, 2], " * 10_000,
    ],
)
def test_what_torch_did_not_write_stays_whole(text):
    assert label(text) == Label(text, RANGE, NONE, None)
