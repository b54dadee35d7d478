"""What is compiled, into how many graphs, and that it computes the same.

Counts are taken from Dynamo over its `eager` backend, which generates no code and so costs no
compiler; code is generated in the full tier.
"""

import math
from collections import Counter

import msgspec
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.levers import compilation
from peakward.lab.levers.compilation import apply_checkpointing as checkpoint
from peakward.lab.levers.model_step import ModelStep
from peakward.lab.levers.prepare import prepare
from peakward.lab.models import decoder
from peakward.lab.numerics.judge import UNIT_ROUNDOFF
from peakward.records.case import Configuration, ModelCase, OperatorCase, Workload
from tiers import in_full

CHECKPOINTING = ("none", "sqrt", "every-block", "selective")


@pytest.fixture
def compiled(monkeypatch) -> list[tuple[nn.Module, str | None]]:
    """The (module, mode) pairs that are asked to compile, which then do nothing."""
    asked = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, mode: asked.append((self, mode)))
    return asked


@pytest.fixture
def make_case(make_shape):
    def make(*, shape=None, pass_="train_step", workload=None, **configuration):
        return ModelCase(
            model=make_shape(**{"n_layers": 5, **(shape or {})}),
            workload=Workload(**{"batch_size": 2, "seq_len": 16, **(workload or {})}, pass_=pass_),
            configuration=Configuration(**{"compile": "default", **configuration}),
            device="cpu",
        )

    return make


def build(shape, checkpointing="none"):
    model = decoder.build(
        shape, attention=implementation("naive"), device="cpu", dtype=torch.float32, seed=0
    )
    blocks = list(model.blocks)
    checkpoint(model, checkpointing)
    return model, blocks


@pytest.mark.parametrize(
    ("mode", "passed_on"),
    [
        ("default", None),
        ("reduce-overhead", "reduce-overhead"),
        ("max-autotune", "max-autotune"),
    ],
)
def test_the_mode_is_passed_on(mode, passed_on, make_shape, compiled):
    model, _ = build(make_shape())
    compilation.apply_compile(model, mode, "model")
    assert compiled == [(model, passed_on)]


def test_none_compiles_nothing(make_shape, compiled):
    compilation.apply_compile(build(make_shape())[0], "none", "block")
    assert compiled == []


@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
def test_by_block_the_blocks_and_the_readout_are_compiled(checkpointing, make_shape, compiled):
    """A recomputed block with its recomputation, of a run of several each one by itself."""
    model, blocks = build(make_shape(n_layers=5), checkpointing)
    compilation.apply_compile(model, "default", "block")
    runs = blocks if checkpointing in ("none", "sqrt") else list(model.blocks)
    assert [module for module, _ in compiled] == [*runs, model.readout]


@pytest.fixture
def counters(monkeypatch):
    """Dynamo's counters over a backend that runs the captured graph as it is."""
    import torch._dynamo
    from torch._dynamo.utils import clear_compilation_metrics, counters

    def compile_(self, mode):
        self._compiled_call_impl = torch.compile(self._call_impl, backend="eager")

    monkeypatch.setattr(nn.Module, "compile", compile_)
    torch._dynamo.reset()
    counters.clear()
    clear_compilation_metrics()
    yield counters
    torch._dynamo.reset()
    counters.clear()


def outcome(case: ModelCase) -> list[torch.Tensor]:
    with prepare(case) as step:
        for _ in range(3):
            step.step()
        if not case.workload.trains:
            return [step.output.clone()]
        parameters = [each.detach().clone() for each in step.model.parameters()]
        return [step.output.clone(), *(each.clone() for each in step.gradients()), *parameters]


@pytest.mark.parametrize(
    "chosen",
    [
        ("every-block", "sdpa"),
        ("none", "naive"),
        *in_full((each, "sdpa") for each in ("none", "sqrt", "selective")),
        *in_full([("selective", "sdpa-math")]),
    ],
)
def test_one_graph_serves_every_block(chosen, make_case, counters):
    checkpointing, attention = chosen
    choices = {"checkpointing": checkpointing, "attention": attention}
    found = outcome(make_case(**choices))
    assert counters["stats"]["unique_graphs"] == 2  # The block's and the readout's.
    assert not counters["graph_break"]
    for mine, plain in zip(found, outcome(make_case(compile="none", **choices)), strict=True):
        assert torch.equal(mine, plain)


@pytest.mark.parametrize(
    "chosen",
    [
        ("selective", "train_step"),
        *in_full((each, "train_step") for each in ("none", "sqrt", "every-block")),
        *in_full([("none", "forward")]),
    ],
)
def test_the_whole_model_is_one_graph(chosen, make_case, counters):
    checkpointing, pass_ = chosen
    choices = {"checkpointing": checkpointing, "pass_": pass_}
    found = outcome(make_case(compile_scope="model", **choices))
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    for mine, plain in zip(found, outcome(make_case(compile="none", **choices)), strict=True):
        assert torch.equal(mine, plain)


@pytest.mark.parametrize("scope", ["block", *in_full(["model"])])
@pytest.mark.parametrize("attention", ["sdpa", *in_full(["naive"])])
@pytest.mark.parametrize("pass_", ["decode", *in_full(["prefill"])])
def test_a_cache_breaks_no_graph_and_serves_every_block(
    pass_, attention, scope, make_case, counters
):
    choices = {"pass_": pass_, "attention": attention}
    found = outcome(make_case(compile_scope=scope, **choices))
    assert counters["stats"]["unique_graphs"] == (2 if scope == "block" else 1)
    assert not counters["graph_break"]
    for mine, plain in zip(found, outcome(make_case(compile="none", **choices)), strict=True):
        assert torch.equal(mine, plain)


@pytest.mark.parametrize("precision", ["fp8", *in_full(["bf16-mixed", "bf16"])])
def test_narrow_types_break_no_graph(precision, make_case, counters):
    found = outcome(make_case(precision=precision))
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
    plain = outcome(make_case(precision=precision, compile="none"))
    assert all(torch.equal(mine, other) for mine, other in zip(found, plain, strict=True))


ARCHITECTURES = {
    "learned, layernorm": {"positions": "learned", "norm": "layernorm", "gated": False},
    "alibi": {"positions": "alibi"},
    "sinusoidal": {"positions": "sinusoidal"},
    "window, gqa": {"window": 6, "n_kv_heads": 2},
}
EXPERTS = {"n_experts": 4, "n_active_experts": 2}


@pytest.mark.parametrize(
    "name", ["alibi", *in_full(each for each in ARCHITECTURES if each != "alibi")]
)
@pytest.mark.parametrize("scope", ["model", *in_full(["block"])])
def test_no_architecture_breaks_the_graph(name, scope, make_case, counters):
    outcome(make_case(shape=ARCHITECTURES[name], compile_scope=scope))
    assert counters["stats"]["unique_graphs"] == (2 if scope == "block" else 1)
    assert not counters["graph_break"]


@pytest.mark.parametrize(
    "chosen", [("every-block", "bf16-mixed"), *in_full([("none", "bf16"), ("selective", "bf16")])]
)
def test_experts_in_one_kernel_break_no_graph(chosen, make_case, counters):
    checkpointing, precision = chosen
    choices = {"shape": EXPERTS, "precision": precision, "checkpointing": checkpointing}
    found = outcome(make_case(**choices))
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
    plain = outcome(make_case(**choices, compile="none"))
    assert all(torch.equal(mine, other) for mine, other in zip(found, plain, strict=True))


@pytest.mark.parametrize("scope", ["block", *in_full(["model"])])
def test_experts_in_a_loop_are_left_to_eager_and_compiled_around(scope, make_case, counters):
    """Whatever the router chooses, nothing is compiled anew."""
    case = make_case(shape=EXPERTS, compile_scope=scope)
    found = outcome(case)
    made = counters["stats"]["unique_graphs"]
    assert made > 1
    assert any("every set of group sizes" in reason for reason in counters["graph_break"])
    with prepare(case) as step:
        for _ in range(5):
            step.step()
    assert counters["stats"]["unique_graphs"] <= 2 * made
    plain = outcome(make_case(shape=EXPERTS, compile="none"))
    assert all(torch.equal(mine, other) for mine, other in zip(found, plain, strict=True))


def test_padding_spares_the_recompilations_of_varying_lengths(make_case, counters):
    lengths = {"varying_seq_lens": (5, 16, 11)}
    outcome(make_case(workload={**lengths, "padding": "to-seq-len"}))
    assert counters["stats"]["unique_graphs"] == 2
    outcome(make_case(workload=lengths))
    assert counters["stats"]["unique_graphs"] > 2


def computed(step: ModelStep) -> list[torch.Tensor]:
    step.step()
    found = step.gradients() if step.case.workload.trains else [step.output]
    return [each.detach().double() for each in found]


def check_generated_code(case: ModelCase) -> None:
    """Within twice the plain model's own error against fp64, tensor by tensor; beyond fp32 within
    the roundings of 5 layers in the narrow type."""
    plain = msgspec.structs.replace(case, configuration=Configuration())
    oracle = computed(ModelStep(plain, torch.float64))
    base = computed(ModelStep(plain, torch.float32))
    with prepare(case) as step:
        found = computed(step)
    torch._dynamo.reset()
    setting = case.configuration.precision
    narrow = 2 * UNIT_ROUNDOFF[setting] * (2 * case.model.n_layers + 2) ** 0.5
    for mine, other, wanted in zip(found, base, oracle, strict=True):
        error, of_plain = ((each - wanted).norm() / wanted.norm() for each in (mine, other))
        assert error <= (2 * of_plain + 2.0**-22 if setting == "fp32" else narrow)


@pytest.mark.full
def test_generated_code_computes_the_same(make_case):
    check_generated_code(make_case(shape={"n_layers": 1}, pass_="forward", compile_scope="model"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("checkpointing", "attention", "precision"),
    [
        *((checkpointing, "sdpa", "fp32") for checkpointing in CHECKPOINTING),
        ("none", "naive", "fp32"),
        ("selective", "sdpa", "bf16-mixed"),
        ("every-block", "sdpa", "bf16"),
    ],
)
def test_generated_code_computes_the_same_with_other_levers(
    checkpointing, attention, precision, make_case
):
    check_generated_code(
        make_case(
            pass_="forward_backward",
            checkpointing=checkpointing,
            attention=attention,
            precision=precision,
        )
    )


@pytest.mark.full
@pytest.mark.parametrize("pass_", ["prefill", "decode"])
def test_generated_code_with_a_cache_computes_the_same(pass_, make_case):
    check_generated_code(make_case(shape={"n_layers": 2}, pass_=pass_, attention="sdpa"))


@pytest.mark.full
@pytest.mark.parametrize("checkpointing", ["none", "selective"])
def test_generated_code_of_the_whole_model_computes_the_same(checkpointing, make_case):
    check_generated_code(
        make_case(pass_="forward_backward", compile_scope="model", checkpointing=checkpointing)
    )


@pytest.mark.full
def test_generated_code_of_an_operator_computes_the_same():
    case = OperatorCase(
        batch_size=1,
        n_heads=2,
        seq_len=32,
        head_dim=8,
        pass_="forward_backward",
        compile="default",
        device="cpu",
    )
    with prepare(case) as step, prepare(msgspec.structs.replace(case, compile="none")) as plain:
        step.step()
        plain.step()
        torch.testing.assert_close(step.output, plain.output, rtol=1e-5, atol=1e-6)
    torch._dynamo.reset()


BATCH, SEQ_LEN = 2, 16
MODES = ("sqrt", "every-block", "selective")
aten = torch.ops.aten


def built(shape, mode, *, attention="naive", dtype=torch.float32):
    model = decoder.build(
        shape, attention=implementation(attention), device="cpu", dtype=dtype, seed=0
    )
    compilation.apply_checkpointing(model, mode)
    return model


def tokens():
    return torch.randint(61, (BATCH, SEQ_LEN), generator=torch.Generator().manual_seed(1))


class Calls(TorchDispatchMode):
    """How often each operator ran."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[func] += 1
        return func(*args, **(kwargs or {}))


def calls_in_backward(shape, mode, **options):
    model = built(shape, mode, **options)
    loss = model(tokens(), tokens())
    with Calls() as calls:
        loss.backward()
    return calls.count


def recomputed(shape, mode, **options):
    """Calls in backward beyond those that backward makes without checkpointing."""
    return calls_in_backward(shape, mode, **options) - calls_in_backward(shape, "none", **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("setting", ["fp32", *in_full(["bf16", "bf16-mixed"])])
def test_equals_none_bit_for_bit(mode, attention, setting, make_shape):
    dtype = torch.bfloat16 if setting == "bf16" else torch.float32

    def outcome(mode):
        model = built(make_shape(n_layers=5), mode, attention=attention, dtype=dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=setting == "bf16-mixed"):
            loss = model(tokens(), tokens())
        loss.backward()
        return [loss.detach(), *(each.grad for each in model.parameters())]

    torch.use_deterministic_algorithms(True)
    try:
        for found, expected in zip(outcome(mode), outcome("none"), strict=True):
            assert torch.equal(found, expected)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("n_layers", [1, 2, 3, 4, 5, 9, 12, 32, 48])
def test_sqrt_cuts_the_blocks_into_runs_of_about_its_root(n_layers, make_shape):
    with torch.device("meta"):
        model = decoder.Decoder(make_shape(n_layers=n_layers), implementation("naive"))
    blocks = list(model.blocks)
    compilation.apply_checkpointing(model, "sqrt")
    runs = [list(run.blocks) for run in model.blocks]
    assert [block for run in runs for block in run] == blocks
    length = math.ceil(math.sqrt(n_layers))
    assert [len(run) for run in runs[:-1]] == [length] * (len(runs) - 1)
    assert 1 <= len(runs[-1]) <= length


@pytest.mark.parametrize("mode", ["none", *MODES])
def test_the_parameters_stay_and_keep_their_order(mode, make_shape):
    model = built(make_shape(n_layers=5), "none")
    before = list(model.parameters())
    compilation.apply_checkpointing(model, mode)
    assert all(a is b for a, b in zip(model.parameters(), before, strict=True))


DEAR = compilation.SAVED_BY_SELECTIVE


@pytest.mark.parametrize("attention", ["naive", "sdpa", "sdpa-math"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_selective_recomputes_no_matmul_and_no_attention(attention, bias, make_shape):
    extra = recomputed(
        make_shape(n_layers=3, bias=bias, qkv_bias=bias), "selective", attention=attention
    )
    assert not {op: n for op, n in extra.items() if op in DEAR}
    assert extra[aten.silu.default] == 3  # It does recompute what is cheap.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_selective_recomputes_no_matmul_of_an_expert(dtype, make_shape):
    """Neither where a loop makes one for each, nor where all are one operator."""
    shape = make_shape(n_layers=3, n_experts=4, n_active_experts=2)
    extra = recomputed(shape, "selective", dtype=dtype)
    assert not {op: n for op, n in extra.items() if op in DEAR}
    assert extra[aten.topk.default] == 3  # The routing is found again.


@pytest.mark.parametrize("mode", ["sqrt", "every-block"])
def test_the_other_modes_recompute_every_matmul_that_backward_needs(mode, make_shape):
    """Of a block's four projections and two attention products all but each run's last one."""
    extra = recomputed(make_shape(n_layers=5), mode)
    runs = {"sqrt": 2, "every-block": 5}[mode]
    assert extra[aten.mm.default] == 4 * 5 - runs
    assert extra[aten.bmm.default] == 2 * 5
    extra = recomputed(make_shape(n_layers=5), mode, attention="sdpa")
    assert extra[aten._scaled_dot_product_flash_attention_for_cpu.default] == 5


def held_between_forward_and_backward(shape, mode, live, attention="sdpa"):
    model = built(shape, mode, attention=attention)
    ids = tokens()
    with live:
        loss = model(ids, ids)
        held = live.now
        del loss
    assert live.now == 0
    return held


def test_every_block_holds_one_residual_stream_a_layer(make_shape, live_bytes):
    def held(n_layers):
        return held_between_forward_and_backward(
            make_shape(n_layers=n_layers), "every-block", live_bytes
        )

    assert held(6) - held(5) == BATCH * SEQ_LEN * 32 * 4


def test_the_modes_hold_less_in_their_order(make_shape, live_bytes):
    shape = make_shape(n_layers=9)
    held = [
        held_between_forward_and_backward(shape, mode, live_bytes)
        for mode in ("none", "selective", "every-block", "sqrt")
    ]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) == 4


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_wrapped_without_gradients(mode, make_shape, monkeypatch):
    model = built(make_shape(), mode)
    expected = built(make_shape(), "none")(tokens())
    monkeypatch.setattr(compilation, "checkpoint", None)
    with torch.no_grad():
        assert torch.equal(model(tokens()), expected)


def test_the_random_state_is_not_stashed(make_shape, monkeypatch):
    """Reading it would synchronise with the device, which a CUDA graph may not do."""

    def forbidden(*_args, **_kwargs):
        raise AssertionError

    monkeypatch.setattr(torch, "get_rng_state", forbidden)
    monkeypatch.setattr("torch.utils.checkpoint.get_device_states", forbidden)
    for mode in MODES:
        built(make_shape(), mode)(tokens(), tokens()).backward()
