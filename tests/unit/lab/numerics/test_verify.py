"""Each numerics class, held and broken, on a small decoder."""

import msgspec
import pytest
import torch

from peakward.lab.models.layers import KINDS
from peakward.lab.numerics import training
from peakward.lab.numerics import verify as room
from peakward.lab.numerics.judge import judge
from peakward.lab.numerics.verify import reduced, verify
from peakward.levers import optimizer
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.lever import Claim
from peakward.records.model_shape import ModelShape
from tiers import in_full

SHAPE = ModelShape(
    name="t",
    vocab_size=200,
    n_layers=2,
    d_model=64,
    d_ff=128,
    n_heads=4,
    n_kv_heads=4,
    head_dim=16,
    max_seq_len=512,
)


def case(pass_="train_step", **configuration):
    return ModelCase(
        model=SHAPE,
        workload=Workload(batch_size=2, seq_len=32, pass_=pass_),
        configuration=Configuration(**configuration),
        device="cpu",
    )


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """A run is taken, however busy the machine is."""
    monkeypatch.setattr(training, "MOST_S", float("inf"))


@pytest.mark.parametrize("pass_", ["forward", "forward_backward", "train_step"])
@pytest.mark.parametrize(
    ("changed", "declared"),
    [
        ({"precision": "bf16"}, "approximate"),
        ({"precision": "bf16-mixed"}, "approximate"),
        ({"attention": "sdpa"}, "reordered"),
        ({"optimizer": "adamw-fused"}, "reordered"),
        ({"checkpointing": "every-block"}, "exact"),
    ],
)
def test_a_lever_keeps_what_its_class_promises(pass_, changed, declared):
    found = verify(case(pass_), case(pass_, **changed), declared)
    assert found.verdict == "holds", found
    expected = {
        "forward": ["logits"],
        "forward_backward": ["loss", "gradients"],
        "train_step": ["loss", "gradients", "parameters"],
    }
    if declared != "approximate":
        expected["train_step"].append("updates")
    if declared != "exact":
        expected["train_step"].append("losses")
    assert [each.quantity for each in found.errors] == expected[pass_]
    assert all(each.candidate_error <= each.bound for each in found.errors)


FUSED = {"norm": "fused", "rope": "fused", "swiglu": "fused"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")
@pytest.mark.parametrize(
    "changed",
    [
        {"rope": "fused"},
        {"norm": "fused"},
        *in_full([{"swiglu": "fused"}]),
        *in_full([{**FUSED, "loss": "chunked", "checkpointing": "every-block"}]),
        *in_full([{"loss": "chunked"}, {"loss": "recomputed"}]),
    ],
    ids=str,
)
def test_peakward_s_own_kernels_reorder(changed):
    """In Triton's interpreter, which rounds each product of a rotation as torch does on a CPU."""
    base = case("forward_backward")
    found = verify(base, case("forward_backward", **changed), "reordered")
    assert found.verdict == "holds", found
    differs = any(each.candidate_error != each.base_error for each in found.errors)
    assert differs == (changed != {"rope": "fused"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")
@pytest.mark.parametrize("pass_", ["decode", *in_full(["forward", "prefill"])])
def test_they_reorder_passes_without_gradients(pass_):
    found = verify(case(pass_), case(pass_, **FUSED), "reordered")
    assert found.verdict == "holds", found


@pytest.mark.parametrize("pass_", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("changed", "declared"),
    [
        ({"precision": "bf16"}, "approximate"),
        ({"precision": "bf16-mixed"}, "approximate"),
        ({"attention": "sdpa"}, "reordered"),
    ],
)
def test_with_a_cache_the_logits_of_the_last_positions_are_compared(pass_, changed, declared):
    found = verify(case(pass_), case(pass_, **changed), declared)
    assert found.verdict == "holds", found
    assert [each.quantity for each in found.errors] == ["logits"]


def test_a_cache_of_other_tokens_is_no_reordering(monkeypatch):
    """The verdict depends on what was held before the step."""
    fill = room.ModelStep._held

    def shifted(step, dtype):
        cache = fill(step, dtype)
        if step.case.configuration.attention == "sdpa":
            layer, put = cache.layers[0], cache.layers[0].put_values
            layer.put_values = lambda new, rows, start: put(new * 1.001, rows, start)
        return cache

    monkeypatch.setattr(room.ModelStep, "_held", shifted)
    assert (
        verify(case("decode"), case("decode", attention="sdpa"), "reordered").verdict == "violated"
    )


MIXED = {"n_experts": 8, "n_active_experts": 2}


def mixed(**configuration):
    wide = msgspec.structs.replace(SHAPE, d_model=128, head_dim=32, n_layers=4, **MIXED)
    work = Workload(batch_size=2, seq_len=128, pass_="forward_backward")
    return msgspec.structs.replace(case(**configuration), model=wide, workload=work)


@pytest.mark.parametrize(
    "pulled",
    [
        ({"attention": "sdpa"}, "reordered"),
        *in_full(
            [
                ({"precision": "bf16"}, "approximate"),
                ({"precision": "bf16-mixed"}, "approximate"),
                ({"checkpointing": "every-block"}, "exact"),
            ]
        ),
    ],
)
def test_a_lever_keeps_its_promise_on_a_mixture_of_experts(pulled):
    changed, declared = pulled
    found = verify(mixed(), mixed(**changed), declared)
    assert found.verdict == "holds", found


@pytest.mark.full
def test_experts_chosen_otherwise_would_be_taken_for_errors(monkeypatch):
    """Why all are active: with two of eight, rounding to bf16 turns some choices."""
    whole = room.reduced
    monkeypatch.setattr(
        room,
        "reduced",
        lambda at: msgspec.structs.replace(
            whole(at), model=msgspec.structs.replace(whole(at).model, n_active_experts=2)
        ),
    )
    two = verify(mixed(), mixed(precision="bf16"), "approximate").errors[1]
    monkeypatch.undo()
    all_ = verify(mixed(), mixed(precision="bf16"), "approximate").errors[1]
    assert two.quantity == all_.quantity == "gradients"
    assert two.candidate_error > 2 * all_.candidate_error


def test_bf16_is_more_than_a_reordering():
    found = verify(case(), case(precision="bf16"), "reordered")
    assert found.verdict == "violated"
    assert "gradients" in found.reason


def test_a_reordering_is_not_exact():
    found = verify(case(), case(attention="sdpa"), "exact")
    assert (found.verdict, found.reason) == ("violated", "not bitwise equal")


@pytest.mark.parametrize("declared", ["approximate", *in_full(["exact", "reordered"])])
def test_another_model_breaks_every_class(declared):
    other = case()
    other = msgspec.structs.replace(other, workload=msgspec.structs.replace(other.workload, seed=1))
    assert verify(case(), other, declared).verdict == "violated"


def test_a_nan_breaks_the_class(monkeypatch):
    real = room.outputs

    def poisoned(step, n_trained):
        outputs = real(step, n_trained)
        if step.case.configuration.attention == "sdpa":
            outputs["gradients"][0].view(-1)[0] = torch.nan
        return outputs

    monkeypatch.setattr(room, "outputs", poisoned)
    found = verify(case(), case(attention="sdpa"), "reordered")
    assert (found.verdict, found.reason) == ("violated", "gradients")


def break_fused(monkeypatch, broken):
    """Has torch's fused AdamW take other options."""
    real = optimizer.adamw

    def wrong(model, implementation, *, capturable):
        made = real(model, implementation, capturable=capturable)
        if implementation == "adamw-fused":
            made.param_groups[0].update(broken)
        return made

    monkeypatch.setattr(optimizer, "adamw", wrong)


@pytest.mark.parametrize(
    "broken",
    [{"lr": 0.0}, {"betas": (0.9, 0.99)}, *in_full([{"lr": -1e-4}, {"betas": (0.1, 0.2)}])],
)
def test_a_wrong_optimiser_is_no_reordering(broken, monkeypatch):
    break_fused(monkeypatch, broken)
    found = verify(case(), case(optimizer="adamw-fused"), "reordered")
    assert found.verdict == "violated"
    assert "updates" in found.reason


def test_determinism_is_put_back():
    verify(case("forward"), case("forward"), "exact")
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_check_runs_at_full_width_on_little_else():
    large = msgspec.structs.replace(
        case(),
        model=msgspec.structs.replace(SHAPE, n_layers=32),
        workload=Workload(batch_size=8, seq_len=512, varying_seq_lens=(128, 512)),
        memory_limit_bytes=1,
    )
    small = reduced(large)
    assert (small.model.n_layers, small.model.d_model) == (4, SHAPE.d_model)
    assert (small.workload.batch_size, small.workload.seq_len) == (2, 256)
    assert small.workload.varying_seq_lens == ()
    assert small.memory_limit_bytes is None
    assert reduced(mixed()).model.n_active_experts == 8


def quantised(weights, pass_="forward", **configuration):
    wide = {"d_model": 128, "d_ff": 256, "n_heads": 2, "n_kv_heads": 2, "head_dim": 64}
    made = case(pass_, precision="fp16-mixed", weights=weights, **configuration)
    return msgspec.structs.replace(made, model=msgspec.structs.replace(SHAPE, **wide))


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")
@pytest.mark.full
@pytest.mark.parametrize("weights", ["int8", "int4:128", "int4:32-calibrated"])
@pytest.mark.parametrize("pass_", ["forward", "prefill"])
def test_quantised_weights_err_as_their_steps_say(weights, pass_):
    """By half of the bound, which is twice what rounding at random in the same steps makes of it: two draws
    of 2 to 64 tokens' errors, which differ by up to a fifth at this width."""
    found = verify(quantised("dense", pass_), quantised(weights, pass_), "approximate")
    assert found.verdict == "holds", found
    (error,) = found.errors
    assert error.candidate_error == pytest.approx(error.bound / 2, rel=0.3)
    assert error.candidate_error > 5 * error.base_error


@pytest.mark.full
@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")
def test_a_decode_step_of_them_holds():
    shape = msgspec.structs.replace(quantised("int8").model, n_layers=1, d_ff=128)
    base, candidate = (
        msgspec.structs.replace(quantised(each, "decode"), model=shape)
        for each in ("dense", "int4:128")
    )
    found = verify(base, candidate, "approximate")
    assert found.verdict == "holds", found


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")
@pytest.mark.parametrize("weights", ["int8", *in_full(["int4:128"])])
def test_weights_of_another_scale_are_told(weights, monkeypatch):
    """Of int4 by more: its own error hides a smaller one."""
    kind = KINDS[weights]
    kept = kind.quantised

    def wrong(weight):
        held, scale = kept(weight)
        return held, scale * (1.25 if weights == "int8" else 1.6)

    base, candidate = quantised("dense"), quantised(weights)
    subject = room._of_decoder(base)
    rounded = subject.rounded(candidate)
    monkeypatch.setattr(kind, "quantised", staticmethod(wrong))
    claim = Claim(base=base, candidate=candidate, declared="approximate")
    (found,) = judge(subject._replace(rounded=lambda _: rounded), [claim])
    assert (found.verdict, found.reason) == ("violated", "logits")


@pytest.mark.full
@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")
def test_levers_on_top_of_quantised_weights_only_reorder():
    base = quantised("int8")
    found = verify(base, quantised("int8", attention="sdpa"), "reordered")
    assert found.verdict == "holds", found


@pytest.mark.parametrize(
    "broken", [{"lr": 1.2e-4}, *in_full([{"lr": 0.0}, {"betas": (0.1, 0.2)}])], ids=str
)
def test_a_training_run_shows_what_one_step_in_16_bits_hides(broken, monkeypatch):
    """A rate that is a fifth too high: gradients are right, and the updates of 16 bits are not compared."""
    break_fused(monkeypatch, broken)
    candidate = case(precision="bf16-mixed", optimizer="adamw-fused")
    found = verify(case(), candidate, "approximate")
    assert (found.verdict, found.reason) == ("violated", "losses")


def test_a_training_run_is_told_by_step_and_layer():
    run = verify(case(), case(precision="bf16"), "approximate").training
    courses = run.candidate, run.base, run.oracle
    assert {len(each.losses) for each in courses} == {training.N_STEPS}
    assert len({each.losses for each in courses}) == 3
    assert run.candidate.losses == pytest.approx(run.oracle.losses, rel=0.01)
    assert run.layers == ("layer 0", "layer 1", "others")
    for mine, theirs in zip(run.candidate.gradient_norms, run.oracle.gradient_norms, strict=True):
        assert mine == pytest.approx(theirs, rel=0.1)
        assert min(theirs) > 0
    assert (run.n_repeated, run.looks) == (2, (1, 6, 11, 16))
    for mine, theirs in zip(run.candidate.output_norms, run.oracle.output_norms, strict=True):
        assert mine == pytest.approx(theirs, rel=0.01)
    for mine, theirs in zip(run.candidate.magnitudes, run.oracle.magnitudes, strict=True):
        assert [sum(layer) for layer in mine] == pytest.approx([1000, 1000], abs=6)
        assert torch.allclose(torch.tensor(mine), torch.tensor(theirs), atol=20)


def test_parameters_in_16_bits_may_drift_as_rounding_makes_them():
    """What drawn errors of gradients alone explain is less."""
    subject = room._of_decoder(case())
    oracle = subject.oracle()
    mixed, rounded = (
        training.drift(*subject.erring(case(precision=each), 0.03)["losses"], *oracle["losses"])
        for each in ("bf16-mixed", "bf16")
    )
    losses = subject.outputs(case(precision="bf16"), 16)["losses"]
    found = training.apart(*losses, *oracle["losses"])
    assert mixed < found / 2 < rounded


def test_no_run_where_the_oracle_is_slow(monkeypatch):
    monkeypatch.setattr(training, "MOST_S", 0.0)
    found = verify(case(), case(precision="bf16"), "approximate")
    assert found.training is None
    assert "losses" not in {each.quantity for each in found.errors}


def test_a_run_that_jumps_is_no_chance(monkeypatch):
    """Its own scatter would allow what it does."""
    real = training.train

    def jumping(step, n_steps):
        course = real(step, n_steps)
        if step.case.configuration.optimizer == "adamw-fused":
            course.losses[-3] += 8.0
        return course

    monkeypatch.setattr(training, "train", jumping)
    found = verify(case(), case(optimizer="adamw-fused"), "reordered")
    assert (found.verdict, found.reason) == ("violated", "losses")


def test_a_scale_that_is_sought_leaves_out_no_update_of_the_run():
    """From 2^16 a step of 16 overflows where the loss is large."""
    found = verify(case(), case(precision="fp16-mixed"), "approximate")
    (losses,) = [each for each in found.errors if each.quantity == "losses"]
    assert losses.candidate_error < losses.bound


def test_an_exact_lever_is_not_trained(monkeypatch):
    """Its bits say all."""
    trained = []
    real = training.train
    monkeypatch.setattr(
        training, "train", lambda step, n: (trained.append(step.case), real(step, n))[1]
    )
    assert verify(case(), case(checkpointing="every-block"), "exact").verdict == "holds"
    assert len(trained) == 1  # The oracle.
