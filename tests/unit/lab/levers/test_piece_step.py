"""A piece of code as a step."""

import pytest
import torch

from peakward.lab.levers.piece_step import PieceStep
from peakward.lab.levers.prepare import prepare
from peakward.records.case import MicroCase
from peakward.records.errors import PeakwardError

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
