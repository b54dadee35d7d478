"""What a case fixes: sizes, types, and the kernel of its attention."""

import pytest

from peakward.prediction.operators.plan import attention_inputs, plan
from peakward.records.case import Configuration, ModelCase, Workload
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
