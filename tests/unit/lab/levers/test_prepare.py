"""One step of every configuration against the plain model in fp64 with the same weights and tokens."""

import functools
import itertools

import msgspec
import pytest
import torch

from peakward.lab.levers import precision
from peakward.lab.levers.model_step import ModelStep
from peakward.lab.levers.prepare import prepare
from peakward.levers.optimizer import LEARNING_RATE
from peakward.records.case import Configuration, ModelCase, OperatorCase, Source, TextData, Workload
from peakward.records.errors import PeakwardError
from tiers import rows_in_full

ROUNDOFF = {
    "fp32": 2.0**-24,
    "bf16-mixed": 2.0**-8,
    "fp16-mixed": 2.0**-11,
    "bf16": 2.0**-8,
    "fp8": 2.0**-4,
}
"""Half a step of the type that each precision rounds the operands of its matmuls to."""
ATTENTION = ("naive", "sdpa", "sdpa-flash", "sdpa-math")
CHECKPOINTING = ("none", "sqrt", "every-block", "selective")
OPTIMIZERS = ("adamw-loop", "adamw-foreach", "adamw-fused")


@pytest.fixture
def make_case(make_shape):
    """make_case(workload's fields, **configuration's fields): a case of three layers."""

    def make(*, shape=None, pass_="train_step", workload=None, **configuration):
        tokens = {"batch_size": 2, "seq_len": 16, **(workload or {})}
        return ModelCase(
            model=make_shape(n_layers=3, **(shape or {})),
            workload=Workload(pass_=pass_, **tokens),
            configuration=Configuration(**configuration),
            device="cpu",
        )

    return make


def results(step: ModelStep) -> dict[str, tuple[torch.Tensor, ...]]:
    """What its next step computes, copied."""
    step.step()
    parameters = tuple(each.detach().clone() for each in step.model.parameters())
    if not step.case.workload.trains:
        return {"logits": (step.output.clone(),), "parameters": parameters}
    gradients = tuple(each.clone() for each in step.gradients())
    return {"loss": (step.output.clone(),), "gradients": gradients, "parameters": parameters}


@functools.cache
def oracle(case: ModelCase) -> dict[str, tuple[torch.Tensor, ...]]:
    return results(
        ModelStep(msgspec.structs.replace(case, configuration=Configuration()), torch.float64)
    )


@functools.cache
def plain(case: ModelCase) -> dict[str, tuple[torch.Tensor, ...]]:
    return results(
        ModelStep(msgspec.structs.replace(case, configuration=Configuration()), torch.float32)
    )


def error(found, expected) -> float:
    squares = sum(
        float((f.double() - e).square().sum()) for f, e in zip(found, expected, strict=True)
    )
    return (squares / sum(float(e.square().sum()) for e in expected)) ** 0.5


def bound(quantity: str, case: ModelCase) -> float:
    """Of the relative error. Without a narrow type: twice that of the plain model in fp32.

    With one, 2·u·√(2·layers + 2): independent roundings by the two additions of each layer, the
    embedding and the head.
    """
    setting = case.configuration.precision
    if setting == "fp32":
        least = ROUNDOFF["fp32"] if quantity == "loss" else 0.0
        return max(2 * error(plain(case)[quantity], oracle(case)[quantity]), least)
    return 2 * ROUNDOFF[setting] * (2 * case.model.n_layers + 2) ** 0.5


def check(case: ModelCase) -> None:
    expected = oracle(case)
    with prepare(case) as step:
        found = results(step)
    for quantity in expected.keys() - {"parameters"}:
        assert error(found[quantity], expected[quantity]) <= bound(quantity, case), quantity
    if case.workload.pass_ == "train_step":
        check_update(case, found["parameters"], expected["parameters"])


def check_update(case, found, expected) -> None:
    """AdamW's first update is the rate times the gradient's sign, so that a gradient near zero may
    flip it; beyond that, parameters held in a narrow type are rounded when drawn, decayed and updated."""
    held = ROUNDOFF["bf16"] if case.configuration.precision == "bf16" else ROUNDOFF["fp32"]
    for mine, wanted in zip(found, expected, strict=True):
        slack = 2 * LEARNING_RATE + 4 * held * wanted.abs()
        assert ((mine.double() - wanted).abs() <= slack).all()
    if case.configuration.precision == "fp32":
        assert error(found, expected) <= LEARNING_RATE


COMBINATIONS = [
    *((p, a, "none") for p, a in itertools.product(ROUNDOFF, ATTENTION)),
    *((p, "sdpa", c) for p, c in itertools.product(ROUNDOFF, CHECKPOINTING[1:])),
]


@pytest.mark.parametrize(
    ("setting", "attention", "checkpointing", "optimizer", "accumulate"),
    # Optimiser and accumulation go round beside the others.
    [(*each, OPTIMIZERS[i % 3], 1 + 2 * (i // 3 % 2)) for i, each in enumerate(COMBINATIONS)],
)
def test_a_train_step(setting, attention, checkpointing, optimizer, accumulate, make_case):
    check(
        make_case(
            workload={"accumulate": accumulate},
            precision=setting,
            attention=attention,
            checkpointing=checkpointing,
            optimizer=optimizer,
        )
    )


@pytest.mark.parametrize("setting", ROUNDOFF)
@pytest.mark.parametrize("pass_", ["forward", "forward_backward"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_other_passes(setting, pass_, accumulate, make_case):
    check(make_case(pass_=pass_, workload={"accumulate": accumulate}, precision=setting))


SHAPES = {
    "gpt2": {
        "norm": "layernorm",
        "gated": False,
        "activation": "gelu-tanh",
        "positions": "learned",
        "tied_head": True,
        "qkv_bias": True,
        "bias": True,
    },
    "gqa, window": {"n_kv_heads": 2, "window": 6},
    "alibi": {"positions": "alibi"},
    # All active: rounding that turned a choice would be no error of arithmetic.
    "experts": {"n_experts": 3, "n_active_experts": 3},
}


WITH_A_CACHE = [
    (name, setting, attention, pass_)
    for name in SHAPES
    for setting in ("fp32", "bf16-mixed", "bf16", "fp16-mixed", "fp8")
    for attention in ("naive", "sdpa")
    for pass_ in ("prefill", "decode")
    if (name, setting) != ("experts", "fp8")  # Which has no experts.
]
FIRST = [each for each in WITH_A_CACHE if each[1] in ("fp32", "fp8")]
"""The types of 16 bits differ in no line of a cache's; of them each has each attention and pass once."""
FIRST += [
    (name, setting, *each)
    for setting in ("bf16-mixed", "bf16", "fp16-mixed")
    for name, each in zip(
        SHAPES, itertools.product(("naive", "sdpa"), ("prefill", "decode")), strict=True
    )
]


@pytest.mark.parametrize(
    ("name", "setting", "attention", "pass_"),
    [*FIRST, *rows_in_full(each for each in WITH_A_CACHE if each not in FIRST)],
)
def test_passes_with_a_cache(name, setting, attention, pass_, make_case):
    shape = SHAPES[name]
    workload = (
        {"batch_size": 16} if setting == "fp8" else {}
    )  # A step of decode has as many tokens.
    check(
        make_case(
            shape=shape, pass_=pass_, workload=workload, precision=setting, attention=attention
        )
    )


def test_a_prefill_gives_the_last_logits_of_a_forward_pass(make_case):
    with prepare(make_case(pass_="prefill")) as step:
        step.step()
        expected = step.model(step._source.held()[0])[:, -1:]
        assert error((step.output,), (expected.detach(),)) <= 2.0**-24 * (16 * 3 + 2) ** 0.5


def test_every_decode_step_stands_behind_the_same_tokens(make_case):
    with prepare(make_case(pass_="decode")) as step:
        outputs = []
        for _ in range(9):
            step.step()
            outputs.append(step.output)
            assert step.cache.length == 15
    assert outputs[0].shape == (2, 1, 61)
    assert torch.equal(outputs[0], outputs[8])
    assert not torch.equal(outputs[0], outputs[1])


@pytest.mark.parametrize(
    ("workload", "configuration", "reason"),
    [
        ({"accumulate": 2}, {}, "accumulate 2 needs a pass that trains"),
        ({"varying_seq_lens": (5, 16)}, {}, "varying lengths need a pass without"),
        ({}, {"checkpointing": "sqrt"}, "checkpointing sqrt needs a pass that trains"),
    ],
)
@pytest.mark.parametrize("pass_", ["prefill", "decode"])
def test_what_does_not_go_with_a_cache(workload, configuration, reason, pass_, make_case):
    case = make_case(pass_=pass_, workload=workload, **configuration)
    with pytest.raises(PeakwardError, match=reason), prepare(case):
        pass


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("setting", ["fp32", "bf16-mixed", "bf16"])
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_other_architectures(shape, setting, attention, make_case):
    check(make_case(shape=shape, precision=setting, attention=attention))


@pytest.mark.parametrize(
    ("setting", "parameters", "logits"),
    [
        ("fp32", torch.float32, torch.float32),
        ("tf32", torch.float32, torch.float32),
        ("bf16-mixed", torch.float32, torch.bfloat16),
        ("fp16-mixed", torch.float32, torch.float16),
        ("bf16", torch.bfloat16, torch.bfloat16),
        ("fp8", torch.float32, torch.bfloat16),
    ],
)
def test_what_each_precision_holds(setting, parameters, logits, make_case):
    with prepare(make_case(precision=setting)) as step:
        step.step()
        held = list(step.model.parameters())
        moments = [state["exp_avg"] for state in step.optimizer.state.values()]
        assert {each.dtype for each in (*held, *step.gradients(), *moments)} == {parameters}
        assert step.output.dtype == torch.float32
    with prepare(make_case(precision=setting, pass_="forward")) as step:
        step.step()
        assert step.output.dtype == logits


def test_accumulated_gradients_are_those_of_one_large_batch(make_case):
    parts = make_case(pass_="forward_backward", workload={"accumulate": 3})
    whole = make_case(pass_="forward_backward", workload={"batch_size": 6})
    found, expected = oracle(parts), oracle(whole)
    # Sums of 3 · 32 tokens in another order: a few roundings of fp64.
    assert error(found["gradients"], expected["gradients"]) <= 20 * 2.0**-53
    assert found["loss"][0].item() == pytest.approx(expected["loss"][0].item(), rel=1e-15)


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_padding_changes_neither_loss_nor_gradients(attention, make_case):
    lengths = {"varying_seq_lens": (5, 16, 11)}
    free, padded = (
        ModelStep(
            make_case(
                pass_="forward_backward",
                attention=attention,
                workload={**lengths, "padding": padding},
            ),
            torch.float64,
        )
        for padding in ("none", "to-seq-len")
    )
    for _ in range(3):
        expected, found = results(free), results(padded)
        for quantity in ("loss", "gradients"):
            assert error(found[quantity], expected[quantity]) <= 20 * 2.0**-53


def test_varying_lengths_go_round_from_step_to_step(make_case):
    case = make_case(pass_="forward", workload={"varying_seq_lens": (5, 16, 11)})
    with prepare(case) as step:
        lengths = []
        for _ in range(7):
            step.step()
            lengths.append(step.output.shape[1])
        step.rewind()
        step.step()
        assert [*lengths, step.output.shape[1]] == [5, 16, 11, 5, 16, 11, 5, 5]


@pytest.mark.parametrize(
    ("pass_", "phases"),
    [
        ("forward", ["forward", "forward", None]),
        ("forward_backward", ["forward", "backward", "forward", "backward", None]),
        (
            "train_step",
            ["forward", "backward", "forward", "backward", "optimizer", None],
        ),
    ],
)
def test_every_phase_is_marked_as_it_begins(pass_, phases, make_case):
    seen = []
    with prepare(make_case(pass_=pass_, workload={"accumulate": 2})) as step:
        assert step.times_phases
        step.step(seen.append)
    assert seen == phases


def test_forward_trains_nothing_and_has_no_loss(make_case):
    with prepare(make_case(pass_="forward")) as step:
        assert step.loss() is None
        step.step()
        assert step.loss() is None
        assert step.optimizer is None
        assert not step.output.requires_grad
        assert not step.model.training
        assert step.output.shape == (2, 16, 61)


def test_loss_is_that_of_the_last_step(make_case):
    with prepare(make_case(pass_="forward_backward")) as step:
        assert step.loss() is None
        seen = []
        for _ in range(9):
            step.step()
            seen.append(step.loss())
    assert len(set(seen[:8])) == 8
    assert seen[8] == seen[0]


def test_training_lowers_the_loss_of_the_batches_that_repeat(make_case):
    with prepare(make_case(shape={"d_model": 64})) as step:
        for group in step.optimizer.param_groups:
            group["lr"] = 1e-2
        step.step()
        first = step.loss()
        for _ in range(160):
            step.step()
        assert step.loss() < 0.6 * first


def global_settings() -> tuple[object, ...]:
    return (
        torch.get_float32_matmul_precision(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(),
        tuple(torch.get_rng_state().tolist()),
    )


@pytest.mark.parametrize("before", ["highest", "high", "medium"])
@pytest.mark.parametrize("setting", ["fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16", "fp8"])
def test_global_settings_are_as_they_were(before, setting, make_case):
    outside = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(before)
    try:
        expected = global_settings()
        with prepare(make_case(precision=setting, attention="sdpa-math")) as step:
            inside = torch.get_float32_matmul_precision()
            step.step()
        assert inside == ("high" if setting == "tf32" else "highest")
        assert global_settings() == expected
        with pytest.raises(ZeroDivisionError), prepare(make_case(precision=setting)):
            raise ZeroDivisionError
        assert global_settings() == expected
    finally:
        torch.set_float32_matmul_precision(outside)


def test_autocast_keeps_no_cast_weights():
    """A cached cast of a weight would outlive the step, and a CUDA graph may not keep it."""
    with precision.autocast("bf16-mixed", "cpu"):
        assert torch.is_autocast_enabled("cpu")
        assert not torch.is_autocast_cache_enabled()


def test_nothing_is_held_after_the_case(make_case, live_bytes):
    with live_bytes as live:
        with prepare(make_case()) as step:
            step.step()
            assert live.now > 3 * step.n_parameters * 4
        assert live.now == 0


def test_parameters_are_counted_once_when_tied(make_case):
    def count(**shape):
        with prepare(make_case(shape=shape)) as step:
            return step.n_parameters

    assert count(tied_head=False) - count(tied_head=True) == 61 * 32


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_two_kinds_of_graphs_exclude_each_other(mode, make_case):
    case = make_case(compile=mode, cuda_graphs=True)
    with pytest.raises(PeakwardError, match="exclude each other"), prepare(case):
        pass


def test_graphs_and_the_looping_optimiser_exclude_each_other(make_case):
    case = make_case(cuda_graphs=True, optimizer="adamw-loop")
    with pytest.raises(PeakwardError, match="set up without a step"), prepare(case):
        pass


def test_graphs_and_loss_scaling_exclude_each_other(make_case):
    case = make_case(precision="fp16-mixed", cuda_graphs=True)
    with pytest.raises(PeakwardError, match="without decisions on the host"), prepare(case):
        pass


def test_an_operator_is_prepared_under_its_precision():
    case = OperatorCase(
        batch_size=1, n_heads=2, seq_len=8, head_dim=4, precision="tf32", device="cpu"
    )
    expected = global_settings()
    with prepare(case) as step:
        assert torch.get_float32_matmul_precision() == "high"
        step.step()
        assert step.output.shape == (1, 2, 8, 4)
    assert global_settings() == expected


EXPERTS = {"n_experts": 4, "n_active_experts": 2}


@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
@pytest.mark.parametrize("pass_", ["forward", "train_step"])
def test_experts_in_fp32(pass_, checkpointing, make_case):
    if pass_ == "train_step" or checkpointing == "none":
        check(make_case(shape=EXPERTS, pass_=pass_, checkpointing=checkpointing))


def test_fp8_has_no_experts(make_case):
    case = make_case(shape=EXPERTS, precision="fp8")
    with (
        pytest.raises(PeakwardError, match="fp8 needs a dense model, got 4 experts"),
        prepare(case),
    ):
        pass


@pytest.mark.parametrize("setting", ["fp32", "tf32"])
def test_graphs_and_experts_that_the_host_waits_for_exclude_each_other(setting, make_case):
    case = make_case(shape=EXPERTS, precision=setting, cuda_graphs=True)
    with pytest.raises(PeakwardError, match=f"bf16-mixed or bf16, got {setting}"), prepare(case):
        pass


FED = TextData(text=Source("python-topics"))


def test_a_fed_step_is_that_of_the_loaders_batches(make_case, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = {}
    for name, data in (("fed", FED), ("live", msgspec.structs.replace(FED, tokenise="on-the-fly"))):
        with prepare(make_case(shape={"vocab_size": 300}, workload={"data": data})) as step:
            losses = []
            for _ in range(3):
                step.step()
                losses.append(step.loss())
            found[name] = losses
            assert len(step.feeding(3).wait_s) == 3
            assert len(step.held()["inputs"]) == 2
    assert found["fed"] == found["live"]
    with prepare(make_case()) as step:
        step.step()
        assert step.feeding(1) is None


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({"data": msgspec.structs.replace(FED, pin_memory=True)}, "need a GPU to copy to, got cpu"),
        ({"data": msgspec.structs.replace(FED, n_workers=4000)}, "loader workers on"),
    ],
)
def test_a_loader_that_cannot_be(make_case, workload, said):
    with pytest.raises(PeakwardError, match=said), prepare(make_case(workload=workload)):
        pass
