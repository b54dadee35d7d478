"""Linear layers with quantised weights in closed form: against the step itself, seen with fake tensors,
against the launch's own settings, and by hand."""

import msgspec
import pytest
import torch

from peakward.lab.levers.capture import capture
from peakward.models.presets import model
from peakward.prediction.operators.linear import Cut, cut
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.operators.tape import tensor
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from tiers import in_full

SHAPE = msgspec.structs.replace(
    model("tiny"),
    n_layers=3,
    d_model=128,
    d_ff=256,
    n_heads=2,
    n_kv_heads=2,
    head_dim=64,
    vocab_size=40,
)
OWN = {"norm": "fused", "rope": "fused", "swiglu": "fused", "attention": "flash"}
"""With these no operator differs from a CPU's to a GPU's."""
ON_CPU = {**dict.fromkeys(OWN, "torch"), "attention": "sdpa"}
INT8, INT4 = {"weights": "int8"}, {"weights": "int4:128"}
BF16, MIXED = {"precision": "bf16"}, {"precision": "bf16-mixed"}
GPT2 = {"positions": "learned", "norm": "layernorm", "gated": False, "activation": "gelu-tanh"}
BIASED = {"bias": True, "qkv_bias": True}
PLAIN = {"rope": "torch", "swiglu": "torch"}
GRID = {
    "int8": ({}, {**BF16, **INT8}, {}),
    "int8, mixed": ({"n_kv_heads": 1}, {**MIXED, **INT8}, {}),
    "int8, any width": ({"d_model": 100, "d_ff": 24, "head_dim": 36}, {**BF16, **INT8}, {}),
    "int4": ({}, {**BF16, **INT4}, {}),
    "int4, fp32": ({}, INT4, {}),
    "int4, mixed, biases": (BIASED, {**MIXED, **INT4}, {}),
    "int4, gpt2": ({**GPT2, **BIASED}, {**BF16, **PLAIN, **INT4}, {}),
    "int8, prefill": ({}, {**MIXED, **INT8}, {"pass_": "prefill"}),
    "int4, prefill, tied": ({"tied_head": True}, {**BF16, **INT4}, {"pass_": "prefill"}),
    "two micro-batches": ({}, {**BF16, **INT8}, {"accumulate": 2}),
}


def case(device, shape=None, configuration=None, workload=None):
    return ModelCase(
        model=msgspec.structs.replace(SHAPE, **(shape or {})),
        workload=Workload(
            **{"batch_size": 2, "seq_len": 14, "pass_": "forward", **(workload or {})}
        ),
        configuration=Configuration(**{**OWN, **(configuration or {})}),
        device=device,
    )


def compared(asked):
    return (set(op_graph(asked("cuda")).operators), set(capture(asked("cpu")).operators))


QUICK = ("int8, any width", "int4, mixed, biases", "int4, prefill, tied")


@pytest.mark.parametrize("name", [*QUICK, *in_full(name for name in GRID if name not in QUICK)])
def test_it_is_what_a_step_shows(name):
    setting = GRID[name]
    closed, captured = compared(lambda device: case(device, *setting))
    assert (closed - captured, captured - closed) == (set(), set())


@pytest.mark.parametrize("pass_", ["forward", *in_full(["prefill", "decode"])])
def test_it_is_what_a_step_on_a_cpu_shows(pass_):
    asked = case("cpu", {}, {**BF16, **INT8, **ON_CPU}, {"pass_": pass_})
    assert set(op_graph(asked).operators) == set(capture(asked).operators)


@pytest.mark.full
@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has it compiled")
def test_a_decode_step_shows_it_too():
    """Run in Triton's interpreter."""
    settings = {**INT4, "attention": "flash-decode"}
    small = {"n_layers": 1, "d_ff": 128}
    closed, captured = compared(lambda device: case(device, small, settings, {"pass_": "decode"}))
    assert (closed - captured, captured - closed) == (set(), set())


def test_by_hand():
    """Of 28 tokens, the down projection: 256 to 128."""
    found = {
        (each.name, each.module): each
        for weights in (INT8, INT4)
        for each in op_graph(case("cuda", {}, {**BF16, **weights})).operators
    }
    x = 28 * 256 * 2
    by_8 = found["peakward.int8_matmul", "blocks.*.ff.down"]
    assert by_8.inputs[1:] == (tensor("int8", 128, 256), tensor("bfloat16", 1, 128))
    assert by_8.bytes_read == x + 128 * 256 + 128 * 2
    by_4 = found["peakward.int4_matmul", "blocks.*.ff.down"]
    assert by_4.inputs[1:] == (tensor("int32", 2, 128, 16), tensor("bfloat16", 2, 128))
    assert by_4.bytes_read == x + 128 * 256 // 2 + 2 * 128 * 2
    for each in (by_8, by_4):
        assert (each.count, each.flops) == (3, 2 * 28 * 256 * 128)
        assert each.bytes_written == 28 * 128 * 2


TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize("compute", TYPES)
@pytest.mark.parametrize(("bits", "group"), [(8, 128), (4, 128), (4, 32)])
def test_it_is_cut_as_it_is_launched(bits, group, compute):
    kernel = pytest.importorskip("peakward.kernels.ops.quantized_matmul.triton")
    settings = kernel.byte_settings_for if bits == 8 else kernel.word_settings_for
    for m in (1, 4, 5, 8, 9, 16, 17, 32, 33, 64, 200, 4096):
        for k, n in (
            (128, 64),
            (4096, 4096),
            (4096, 14_336),
            (14_336, 4096),
            (2560, 10_240),
            (8192, 8192),
        ):
            chosen = settings(
                m=m,
                n=n,
                n_tiles=-(-k // 128),
                group=group,
                dtype=TYPES[compute],
                n_multiprocessors=132,
            )
            found = cut(m, k, n, bits=bits, group=group, compute=compute)
            rows = 1 if isinstance(chosen, kernel.Row) else chosen.rows
            assert found == Cut(rows, chosen.n_splits)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (case("cpu", {}, {**INT4, **ON_CPU}),
         "expected weights dense or int8 for operators in closed form, got int4:128"),
        (case("cuda", {}, INT8, {"pass_": "train_step"}), "weights int8 needs the pass"),
        (case("cuda", {"d_ff": 64}, INT4), "weights int4:128 need d_ff in whole groups of 128, got 64"),
        (case("cuda", {}, {**INT8, "precision": "fp8"}), "weights int8 needs the precision"),
        (case("cuda", {"n_experts": 4, "n_active_experts": 2}, INT8), "of linear layers, got a mixture of 4"),
    ],
)  # fmt: skip
def test_what_it_does_not_go_with_is_refused(made, says):
    with pytest.raises(PeakwardError, match=says):
        op_graph(made)


def test_an_older_gpu_is_refused():
    with pytest.raises(PeakwardError, match=r"compute capability of 8\.0 or more"):
        op_graph(case("cuda", {}, {**BF16, **INT8}), compute_capability=(7, 5))
