"""What is compiled, into how many graphs, and that it computes the same.

Counts are taken from Dynamo over its `eager` backend, which generates no code and so costs no
compiler; code is generated in the full tier.
"""

import msgspec
import pytest
import torch
from torch import nn

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.levers import compilation
from peakward.lab.levers.checkpointing import apply as checkpoint
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
    compilation.apply(model, mode, "model")
    assert compiled == [(model, passed_on)]


def test_none_compiles_nothing(make_shape, compiled):
    compilation.apply(build(make_shape())[0], "none", "block")
    assert compiled == []


@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
def test_by_block_the_blocks_and_the_readout_are_compiled(checkpointing, make_shape, compiled):
    """A recomputed block with its recomputation, of a run of several each one by itself."""
    model, blocks = build(make_shape(n_layers=5), checkpointing)
    compilation.apply(model, "default", "block")
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
