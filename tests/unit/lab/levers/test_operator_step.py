"""Attention alone as a step: what it computes, and what each pass leaves behind."""

import pytest
import torch

from peakward.kernels.ops.attention import reference
from peakward.lab.levers.operator_step import AttentionStep, PieceStep, held_bytes
from peakward.lab.levers.prepare import prepare
from peakward.records.case import MicroCase, OperatorCase
from peakward.records.errors import PeakwardError
from tiers import in_full


def make(**options):
    return AttentionStep(
        OperatorCase(batch_size=2, n_heads=3, seq_len=12, head_dim=8, device="cpu", **options)
    )


@pytest.mark.parametrize("attention", ["naive", "sdpa", "sdpa-flash", "sdpa-math"])
@pytest.mark.parametrize(
    ("precision", "dtype", "roundoff"),
    [("fp32", torch.float32, 2.0**-24), ("bf16", torch.bfloat16, 2.0**-8)],
)
def test_forward_and_backward_are_those_of_the_reference(attention, precision, dtype, roundoff):
    step = make(attention=attention, precision=precision, pass_="forward_backward")
    step.step()
    leaves = [each.detach().double().requires_grad_() for each in step._inputs]
    expected = reference.attention(*leaves, window=None, bias=None)
    expected.backward(step._gradient.double())
    assert step.output.dtype == dtype
    found = [step.output, *(each.grad for each in step._inputs)]
    wanted = [expected, *(each.grad for each in leaves)]
    for mine, theirs in zip(found, wanted, strict=True):
        error = (mine.double() - theirs).norm() / theirs.norm()
        assert error <= 8 * roundoff  # The chain has some eight rounded results: scores to mix.


def test_gradients_are_not_summed_over_steps():
    step = make(pass_="forward_backward")
    step.step()
    first = [each.grad.clone() for each in step._inputs]
    step.step()
    assert all(torch.equal(a.grad, b) for a, b in zip(step._inputs, first, strict=True))


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("compiled", ["none", *in_full(["default"])])
def test_backward_goes_through_one_graph_again_and_again(attention, compiled):
    both = make(attention=attention, pass_="forward_backward")
    both.step()
    alone = make(attention=attention, pass_="backward", compile=compiled)
    alone.step()
    kept = alone._kept
    alone.step()
    assert alone._kept is kept
    for mine, other in zip(alone._inputs, both._inputs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_what_is_held_for_backward_is_what_autograd_saved_and_the_result():
    pairs, rows = 2 * 3 * 12 * 12, 2 * 3 * 12 * 8
    weights, mask = pairs * 4, 12 * 12
    step = make(pass_="backward")
    step.step()
    assert step.held_for_backward_bytes() == weights + mask + rows * 4
    log_sum_exp = 2 * 3 * 12 * 4
    fused = make(pass_="forward_backward", attention="sdpa-flash").held_for_backward_bytes()
    assert fused == rows * 4 + log_sum_exp
    assert make(pass_="forward").held_for_backward_bytes() is None


@pytest.mark.full
def test_flex_is_the_reference_and_has_no_backward_on_a_cpu():
    found, expected = make(attention="flex"), make()
    found.step()
    expected.step()
    torch.testing.assert_close(found.output, expected.output)
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        make(attention="flex", pass_="backward").step()


def test_our_kernels_refuse_a_cpu():
    with pytest.raises(ValueError, match="flash_attention: expected"):
        make(attention="flash").step()


def test_forward_keeps_nothing_for_backward():
    step = make(pass_="forward")
    step.step()
    assert step.output.shape == (2, 3, 12, 8)
    assert not step.output.requires_grad
    assert not any(each.requires_grad for each in step._inputs)


@pytest.mark.parametrize(
    ("pass_", "phases"),
    [
        ("forward", ["forward", None]),
        ("backward", ["backward", None]),
        ("forward_backward", ["forward", "backward", None]),
    ],
)
def test_every_phase_is_marked_as_it_begins(pass_, phases):
    seen = []
    make(pass_=pass_).step(seen.append)
    assert seen == phases


@pytest.mark.parametrize("pass_", ["forward", "backward", "forward_backward"])
@pytest.mark.parametrize(
    ("attention", "parts"),
    [
        ("naive", ["attention.scores", "attention.softmax", "attention.values"]),
        ("sdpa-math", []),
    ],
)
def test_in_ranges_every_bit_is_the_same(attention, parts, pass_, watched):
    step = make(attention=attention, pass_=pass_)
    step.step()
    plain = [step.output, *(each.grad for each in step._inputs if each.grad is not None)]
    with step.ranged():
        seen = watched(step.step).ranges
    ranged = [step.output, *(each.grad for each in step._inputs if each.grad is not None)]
    assert all(torch.equal(mine, other) for mine, other in zip(ranged, plain, strict=True))
    assert list(seen) == [(0, "attention"), *((1, each) for each in parts)]
    assert watched(step.step).ranges == ()


def test_the_seed_decides():
    assert torch.equal(make(seed=1)._inputs[0], make(seed=1)._inputs[0])
    assert not torch.equal(make(seed=1)._inputs[0], make(seed=2)._inputs[0])


def test_has_no_loss_and_no_model():
    step = make()
    step.step()
    assert step.loss() is None and step.model is None and step.n_parameters is None


def test_each_storage_counts_once_and_inputs_do_not():
    x = torch.randn(8, 4, requires_grad=True)
    n_bytes = 8 * 4 * 4
    assert held_bytes(lambda: x * 2, [x]) == n_bytes, "the result alone"
    assert held_bytes(x.exp, [x]) == n_bytes, "saved, and the result"
    assert held_bytes(lambda: x.mT.exp().mT, [x]) == n_bytes, "one storage, two views"
    assert held_bytes(lambda: x * x, [x]) == n_bytes, "both operands are the input"
    assert held_bytes(lambda: x.exp().sin(), [x]) == 2 * n_bytes


CASE = MicroCase(subject="rms-norm", piece="torch", sizes=(4, 8), device="cpu")


def test_a_step_runs_the_piece_without_gradients():
    seen = []
    step = PieceStep(CASE)
    step.piece = step.piece._replace(run=lambda: seen.append(torch.is_grad_enabled()))
    step.step()
    step.step()
    assert seen == [False, False]


def test_it_has_no_loss_no_phases_and_no_parameters():
    with prepare(CASE) as step:
        step.step()
        with step.ranged():
            step.step()
        assert (step.loss(), step.n_parameters, step.times_phases) == (None, None, False)


@pytest.mark.parametrize(("precision", "set_to"), [("tf32", "high"), ("fp32", "highest")])
def test_tf32_is_allowed_for_a_case_of_it_alone(precision, set_to):
    before = torch.get_float32_matmul_precision()
    case = MicroCase(subject="matmul", piece="torch", sizes=(4,), device="cpu", precision=precision)
    with prepare(case):
        assert torch.get_float32_matmul_precision() == set_to
    assert torch.get_float32_matmul_precision() == before


def test_an_unknown_piece_is_refused():
    case = MicroCase(subject="matmul", piece="abacus", sizes=(4,), device="cpu")
    with pytest.raises(PeakwardError, match="got 'abacus'"):
        PieceStep(case)
