"""What a case fixes: sizes, types, and the kernel of its attention."""

import pytest

from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.operators.plan import attention_inputs, plan
from peakward.records.case import Configuration, ModelCase, Source, TextData, Workload
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


@pytest.mark.parametrize(
    ("precision", "stored", "compute"),
    [
        ("fp32", "float32", "float32"),
        ("tf32", "float32", "float32"),
        ("bf16", "bfloat16", "bfloat16"),
        ("bf16-mixed", "float32", "bfloat16"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_types_of_each_precision(device, precision, stored, compute):
    planned = plan(case(configuration={"precision": precision}, device=device))
    assert (planned.stored, planned.compute) == (stored, compute)
    assert (planned.hidden.shape, planned.hidden.dtype) == ((2, 12, 16), stored)
    assert planned.tokens == 24


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_the_kernel_is_of_the_device(attention):
    on_cpu, on_cuda = (
        plan(case(configuration={"attention": attention}, device=each)).attention
        for each in ("cpu", "cuda")
    )
    of_sdpa = ("flash-for-cpu", "math")  # Heads that share keys, in fp32: no fused one takes them.
    assert (on_cpu, on_cuda) == (("naive", "naive") if attention == "naive" else of_sdpa)


@pytest.mark.parametrize("backend", ["cudnn", "flash", "efficient", "math"])
def test_a_named_kernel_is_that_one(backend):
    shape = {"head_dim": 8, "n_kv_heads": 4}
    settings = {"attention": f"sdpa-{backend}", "precision": "bf16"}
    assert plan(case(shape, settings, device="cuda")).attention == backend


def test_only_fp16_scales_its_loss():
    scaled = [
        each
        for each in ("fp32", "bf16-mixed", "fp16-mixed")
        if plan(case(configuration={"precision": each}, device="cuda")).loss_scaled
    ]
    assert scaled == ["fp16-mixed"]


def asked(pass_="train_step", **shape):
    heads = {"n_kv_heads": 4, "head_dim": 8}
    wanted = case({**heads, **shape}, {"attention": "sdpa"}, {"pass_": pass_}, device="cuda")
    return attention_inputs(wanted, "bfloat16", (8, 0))


def test_attention_s_inputs_are_those_of_the_case():
    plain = asked()
    assert (plain.head_dim, plain.n_keys, plain.dtype) == (8, 12, "bfloat16")
    assert not (plain.masked or plain.grouped)
    assert plain.differentiated
    assert asked("prefill") == asked("forward")
    one_query = asked("decode", window=5)
    assert (one_query.n_keys, one_query.masked, one_query.differentiated) == (5, False, False)
    assert asked(n_kv_heads=2).grouped
    assert not asked("forward").differentiated


def test_a_window_masks_only_where_it_is_shorter_than_the_sequence():
    assert [asked(window=each).masked for each in (11, 12, None)] == [True, False, False]
    assert asked(positions="alibi").masked


# What is not covered is refused, with what to do.


def coverage_case(shape=None, configuration=None, workload=None, device="cpu"):
    sizes = {"vocab_size": 50, "n_layers": 2, "d_model": 16, "d_ff": 24, "max_seq_len": 64}
    heads = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 6}
    return ModelCase(
        model=ModelShape(**{"name": "one", **sizes, **heads, **(shape or {})}),
        workload=Workload(**{"batch_size": 2, "seq_len": 12, **(workload or {})}),
        configuration=Configuration(**(configuration or {})),
        device=device,
    )


EXPERTS = {"n_experts": 4, "n_active_experts": 2}
REFUSED = {
    "precision fp16": coverage_case(configuration={"precision": "fp16-mixed"}),
    "precision fp8": coverage_case(configuration={"precision": "fp8"}),
    "attention": coverage_case(configuration={"attention": "sdpa-math"}),
    "compile": coverage_case(configuration={"compile": "default"}),
    "checkpointing": coverage_case(configuration={"checkpointing": "selective"}),
    "optimizer": coverage_case(configuration={"optimizer": "adamw-triton"}),
    "cuda_graphs": coverage_case(configuration={"cuda_graphs": True}),
    "varying_seq_lens": coverage_case(workload={"varying_seq_lens": (4, 8)}),
}


@pytest.mark.parametrize("setting", REFUSED)
def test_what_is_not_covered_is_refused_by_name(setting):
    name = setting.partition(" ")[0]
    line = f"^expected {name} .* for operators in closed form, got .*: measure the case instead"
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
        op_graph(coverage_case(shape, workload=workload))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_lever_that_does_not_describe_its_work_is_not_predicted(device):
    """Its step would else be predicted as that of the default."""
    with pytest.raises(PeakwardError, match="levers whose work is described, got pace f"):
        op_graph(coverage_case(configuration={"more": (("pace", "fast"),)}, device=device))


CUDA_REFUSED = {
    "compile": coverage_case(configuration={"compile": "reduce-overhead"}, device="cuda"),
    "precision in a CUDA graph": coverage_case(
        configuration={"cuda_graphs": True, "precision": "fp16-mixed"}, device="cuda"
    ),
    "optimizer in a CUDA graph": coverage_case(
        configuration={"cuda_graphs": True, "optimizer": "adamw-loop"}, device="cuda"
    ),
    # No module has this pass, so that its operators cannot be captured either.
    "pass of a mixture of experts": coverage_case(
        EXPERTS, {"precision": "bf16"}, {"pass_": "decode"}, device="cuda"
    ),
    "compile of a mixture of experts": coverage_case(
        EXPERTS, {"compile": "default", "precision": "bf16"}, device="cuda"
    ),
    "varying_seq_lens": coverage_case(workload={"varying_seq_lens": (4, 8)}, device="cuda"),
    "data": coverage_case(workload={"data": TextData(text=Source("kjv"))}, device="cuda"),
}


@pytest.mark.parametrize("setting", CUDA_REFUSED)
def test_what_is_not_covered_on_cuda_is_refused_by_name(setting):
    line = f"^expected {setting} .* for operators in closed form, got .*: measure the case instead"
    with pytest.raises(PeakwardError, match=line):
        op_graph(CUDA_REFUSED[setting])


@pytest.mark.parametrize(
    ("configuration", "capability", "line"),
    [
        ({"precision": "fp8"}, (9, 0), "precision fp8 needs a dense model, got 4 experts"),
        ({"cuda_graphs": True}, (9, 0), "cuda-graphs on needs, .* precision bf16-mixed or bf16"),
        ({"cuda_graphs": True, "precision": "bf16"}, (8, 0), "capability 9 or 10, got 8.0"),
    ],
)
def test_what_does_not_go_with_a_mixture_is_refused(configuration, capability, line):
    made = coverage_case(EXPERTS, configuration, device="cuda")
    with pytest.raises(PeakwardError, match=f"expected settings that go together: .*{line}"):
        op_graph(made, compute_capability=capability)


FP8 = {"d_model": 32, "d_ff": 48, "head_dim": 16}


@pytest.mark.parametrize(
    ("shape", "workload", "line"),
    [
        ({}, {"seq_len": 9}, r"batch_size · seq_len in multiples of 16 for fp8, got 18: "),
        ({"d_model": 40}, {}, "d_model in multiples of 16 for fp8, got 40: "),
        ({"d_ff": 50}, {}, "d_ff in multiples of 16 for fp8, got 50: "),
        ({"head_dim": 6}, {}, r"n_heads · head_dim in multiples of 16 for fp8, got 24: "),
        ({"head_dim": 4, "n_kv_heads": 1}, {}, r"n_kv_heads\) · head_dim in .* fp8, got 24: "),
    ],
)
def test_matrices_that_have_no_fp8_product_are_refused(shape, workload, line):
    shape, workload = {**FP8, **shape}, {"seq_len": 16, **workload}
    with pytest.raises(PeakwardError, match=line):
        op_graph(coverage_case(shape, {"precision": "fp8"}, workload, device="cuda"))


def test_matrices_of_whole_tiles_have_one():
    names = {
        each.name
        for each in op_graph(
            coverage_case(FP8, {"precision": "fp8"}, {"seq_len": 16}, device="cuda")
        ).operators
    }
    assert "aten._scaled_mm" in names


@pytest.mark.parametrize(
    ("precision", "least", "older"), [("bf16", (8, 0), (7, 5)), ("fp8", (8, 9), (8, 6))]
)
def test_gpus_of_which_nothing_is_known_are_refused(precision, least, older):
    made = coverage_case(FP8, {"precision": precision}, {"seq_len": 16}, device="cuda")
    assert op_graph(made, compute_capability=least).operators
    with pytest.raises(PeakwardError, match=r"expected a compute capability of .* or more for"):
        op_graph(made, compute_capability=older)
