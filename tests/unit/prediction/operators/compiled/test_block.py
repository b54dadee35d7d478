"""What is not covered of compiled cases is refused, with what to do."""

import pytest

from peakward.prediction.operators.op_graph import op_graph
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape


def case(shape=None, configuration=None, workload=None):
    sizes = {"vocab_size": 64, "n_layers": 2, "d_model": 32, "d_ff": 64, "max_seq_len": 64}
    heads = {"n_heads": 4, "n_kv_heads": 4, "head_dim": 8}
    return ModelCase(
        model=ModelShape(**{"name": "one", **sizes, **heads, **(shape or {})}),
        workload=Workload(**{"batch_size": 2, "seq_len": 16, **(workload or {})}),
        configuration=Configuration(**{"compile": "default", **(configuration or {})}),
        device="cuda",
    )


REFUSED = {
    "compile_scope": case(configuration={"compile_scope": "model"}),
    "checkpointing of compiled blocks": case(configuration={"checkpointing": "sqrt"}),
    "pass of compiled blocks in fp8": case(
        configuration={"precision": "fp8"}, workload={"pass_": "forward"}
    ),
    "checkpointing of compiled blocks in fp8": case(
        configuration={"precision": "fp8", "checkpointing": "selective"}
    ),
    "kernel of compiled attention": case(configuration={"attention": "sdpa-math"}),
    "remainder of head_dim by 8": case({"norm": "layernorm", "n_heads": 2, "head_dim": 12}),
    "a d_model of at most 8192": case({"d_model": 8448}),
}


@pytest.mark.parametrize("setting", REFUSED)
def test_what_is_not_covered_is_refused_by_name(setting):
    line = f"^expected {setting} .*for kernels in closed form, got .*: measure the case instead"
    with pytest.raises(PeakwardError, match=line):
        op_graph(REFUSED[setting])


@pytest.mark.parametrize(
    "made",
    [
        case(),
        case({"window": 16}),
        case({"n_kv_heads": 2}, {"attention": "sdpa", "precision": "bf16"}),
        case(configuration={"precision": "tf32"}),
        case(configuration={"precision": "fp8"}),
        case({"norm": "layernorm"}),
        case({"positions": "learned"}),
        case({"positions": "alibi"}),
        case({"window": 8}),
        case({"activation": "gelu"}),
        case({"gated": False}),
        case({"qkv_bias": True}),
        case({"n_kv_heads": 2}),
        case(configuration={"checkpointing": "every-block"}),
        case(configuration={"checkpointing": "selective"}),
    ],
)
def test_the_rest_is_covered(made):
    assert any(each.fused for each in op_graph(made).operators)
