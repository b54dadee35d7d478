"""What is seen of a short training run beside its losses."""

import pytest
import torch

from peakward.lab.levers.prepare import prepare
from peakward.lab.numerics import training
from peakward.lab.numerics.verify import verify
from peakward.levers.catalogue import lever, pull
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.lever import MAGNITUDES_LOG2
from peakward.records.model_shape import ModelShape
from tiers import in_full

SHAPE = ModelShape(
    name="t",
    vocab_size=64,
    n_layers=4,
    d_model=32,
    d_ff=64,
    n_heads=2,
    n_kv_heads=2,
    head_dim=16,
    max_seq_len=64,
)


def case(**configuration):
    return ModelCase(
        model=SHAPE,
        workload=Workload(batch_size=2, seq_len=16, pass_="train_step"),
        configuration=Configuration(**configuration),
        device="cpu",
    )


def course(n_steps=6, **configuration):
    with prepare(case(**configuration)) as step:
        found = training.train(step, n_steps)
        return found, [each.detach().clone() for each in step.model.parameters()]


def test_norms_and_magnitudes_are_those_of_the_blocks_after_the_update():
    given = []
    with prepare(case()) as step:
        found = training.train(step, 1)
        ((ids, _),) = step._batches
        step.model.blocks[2].register_forward_hook(lambda *call: given.append(call[-1]))
        with torch.no_grad():
            step.model(ids)
        gradient = next(step.model.parameters()).grad.norm()
    (output,) = given
    assert found.outputs[0, 2] == pytest.approx(float(output.norm()))
    assert found.gradients[0, 0] == pytest.approx(float(gradient))
    shares = [float((output.abs() >= 2.0**each).double().mean()) for each in MAGNITUDES_LOG2]
    assert found.above[0, 2].tolist() == pytest.approx(shares)
    assert 0 < shares[3] < 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_outputs_that_are_not_finite_are_in_the_bin_of_the_largest(value):
    above = training._above(torch.full((2, 8, 16), value), counts=True)
    ((found,),) = training._binned(above[None, None])
    assert found == (0,) * len(MAGNITUDES_LOG2) + (1000,)


def test_a_run_that_is_looked_at_is_the_run_that_is_not(monkeypatch):
    seen, parameters = course()
    monkeypatch.setattr(training, "_outputs", lambda *_, **__: (torch.zeros(0), torch.zeros(0, 0)))
    unseen, others = course()
    assert torch.equal(seen.losses, unseen.losses)
    assert all(map(torch.equal, parameters, others))


@pytest.mark.parametrize(
    "changed",
    [
        {"checkpointing": "sqrt"},
        {"checkpointing": "selective"},
        *in_full([{"compile": "default"}, {"compile": "default", "compile_scope": "model"}]),
    ],
    ids=str,
)
def test_layers_are_seen_whatever_lies_around_them(changed):
    plain, other = course(n_steps=2)[0], course(n_steps=2, **changed)[0]
    assert other.outputs.shape == (2, SHAPE.n_layers)
    assert torch.allclose(other.outputs, plain.outputs, rtol=1e-4)
    with prepare(case(**changed)) as step:
        assert set(training.numbers(step)) == {None, 0, 1, 2, 3}


def test_every_step_has_norms_and_every_fifth_is_counted():
    found, parameters = course(n_steps=7)
    assert found.gradients.shape == (7, len(parameters))
    assert found.above.shape == (2, SHAPE.n_layers, len(MAGNITUDES_LOG2))
    assert (found.above.diff(dim=-1) <= 0).all()


def test_outputs_of_a_module_without_repeated_blocks_are_not_computed(make_module_case):
    base = make_module_case("py:tiny_gpt:without_blocks")
    run = verify(base, pull(lever("fused-optimizer"), base), "reordered").training
    assert (run.layers, run.n_repeated) == (("others",), 0)
    assert run.candidate.output_norms[0] == run.candidate.magnitudes[0] == ()
    assert min(norm for (norm,) in run.oracle.gradient_norms) > 0


@pytest.mark.parametrize("source", ["py:tiny_gpt:with_batch", "hf:gpt2", *in_full(["hf:llama"])])
def test_layers_of_a_user_s_module(source, make_module_case):
    if source.startswith("hf:"):
        pytest.importorskip("transformers")
    base = make_module_case(source)
    run = verify(base, pull(lever("bf16-mixed"), base), "approximate").training
    assert run.layers[-1] == "others"
    assert run.n_repeated == len(run.layers) - 1 >= 2
    for mine, theirs in zip(run.candidate.output_norms, run.oracle.output_norms, strict=True):
        assert mine == pytest.approx(theirs, rel=0.02)


@pytest.mark.parametrize("name", ["sdpa", *in_full(["chunked-loss", "checkpointing"])])
def test_layers_are_seen_where_parts_were_replaced_in_the_module(name, make_module_case):
    base = make_module_case("py:tiny_gpt:naive")
    found = verify(base, pull(lever(name), base), "reordered")
    assert (found.verdict, found.training.n_repeated) == ("holds", 2)
    norms = found.training.candidate.output_norms[-1]
    assert norms == pytest.approx(found.training.oracle.output_norms[-1], rel=1e-5)


def test_a_value_that_is_not_finite_is_none_in_the_record():
    losses = torch.tensor([1.0, float("nan")])
    broken = training.Course(losses, losses[:, None], torch.zeros(2, 0), torch.zeros(1, 0, 11))
    run = training.run_of([None], broken, broken, broken)
    assert run.candidate.losses == (1.0, None)
    assert run.candidate.gradient_norms == ((1.0,), (None,))
