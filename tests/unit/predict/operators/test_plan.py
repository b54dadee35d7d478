"""What is not covered is refused, with what to do; what is covered fixes sizes and types."""

import pytest

from peakward.predict.operators.op_graph import op_graph
from peakward.predict.operators.plan import plan
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape


def case(shape=None, configuration=None, workload=None, device="cpu"):
    sizes = {"vocab_size": 50, "n_layers": 2, "d_model": 16, "d_ff": 24, "max_seq_len": 64}
    heads = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 6}
    return ModelCase(
        model=ModelShape(**{"name": "one", **sizes, **heads, **(shape or {})}),
        workload=Workload(**{"batch_size": 2, "seq_len": 12, **(workload or {})}),
        configuration=Configuration(**(configuration or {})),
        device=device,
    )


REFUSED = {
    "precision fp16": case(configuration={"precision": "fp16-mixed"}),
    "precision fp8": case(configuration={"precision": "fp8"}),
    "attention": case(configuration={"attention": "sdpa-math"}),
    "compile": case(configuration={"compile": "default"}),
    "checkpointing": case(configuration={"checkpointing": "selective"}),
    "optimizer": case(configuration={"optimizer": "adamw-triton"}),
    "cuda_graphs": case(configuration={"cuda_graphs": True}),
    "device": case(device="cuda"),
    "n_experts": case({"n_experts": 4, "n_active_experts": 2}),
    "varying_seq_lens": case(workload={"varying_seq_lens": (4, 8)}),
}


@pytest.mark.parametrize("setting", REFUSED)
def test_what_is_not_covered_is_refused_by_name(setting):
    name = setting.partition(" ")[0]
    line = f"^expected {name} .* for operators in closed form, got .*: capture the step instead"
    with pytest.raises(PeakwardError, match=line):
        op_graph(REFUSED[setting])


@pytest.mark.parametrize(
    ("shape", "workload", "line"),
    [
        ({"d_model": 1}, {}, "expected d_model of 2 or more .*, got 1: "),
        ({"head_dim": 2}, {}, "expected head_dim of 3 or more .*, got 2: "),
        ({}, {"seq_len": 1}, "expected seq_len of 2 or more .*, got 1: "),
        ({"head_dim": 5}, {}, "expected an even head_dim, .*, got 5: "),
        ({"positions": "learned"}, {"seq_len": 65}, "up to the 64 learned positions, got 65: "),
    ],
)
def test_sizes_that_are_not_covered_are_refused(shape, workload, line):
    with pytest.raises(PeakwardError, match=line):
        op_graph(case(shape, workload=workload))


@pytest.mark.parametrize(
    ("precision", "stored", "compute"),
    [
        ("fp32", "float32", "float32"),
        ("tf32", "float32", "float32"),
        ("bf16", "bfloat16", "bfloat16"),
        ("bf16-mixed", "float32", "bfloat16"),
    ],
)
def test_types_of_each_precision(precision, stored, compute):
    planned = plan(case(configuration={"precision": precision}))
    assert (planned.stored, planned.compute) == (stored, compute)
    assert (planned.hidden.shape, planned.hidden.dtype) == ((2, 12, 16), stored)
    assert planned.tokens == 24
