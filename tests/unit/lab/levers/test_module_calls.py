"""How a user's module is called."""

from types import SimpleNamespace

import pytest
import torch

from peakward.lab.levers.module_calls import GivenBatch, main_tensor, scalar
from peakward.lab.models.given_module import GivenModule
from peakward.records.case import Workload
from peakward.records.errors import PeakwardError


def given_batch(batch, dtype=torch.float32):
    return GivenBatch(GivenModule(module=torch.nn.Identity(), args=batch), dtype)


def test_a_batch_is_cast_where_it_is_of_floats():
    calls = given_batch((torch.zeros(2, 3).long(), torch.zeros(4)), torch.bfloat16)
    ((batch,),) = calls.batches(Workload(batch_size=2, seq_len=3), "cpu")
    assert [each.dtype for each in batch] == [torch.int64, torch.bfloat16]


def test_a_micro_batch_is_as_many_times_as_gradients_are_summed():
    work = Workload(batch_size=2, seq_len=3, accumulate=4)
    (step,) = given_batch((torch.zeros(2, 3),)).batches(work, "cpu")
    assert len(step) == 4


def test_a_batch_of_another_size_is_refused():
    with pytest.raises(
        PeakwardError, match=r"expected a batch of 2 × 16 .*, got a first tensor of \(4, 8\)"
    ):
        given_batch((torch.zeros(4, 8),)).batches(Workload(batch_size=2, seq_len=16), "cpu")


def test_the_main_tensor_of_an_output():
    logits = torch.zeros(3)
    for output in (
        logits,
        (logits, None),
        SimpleNamespace(logits=logits),
        [torch.zeros(1).int(), logits],
    ):
        assert main_tensor(output) is logits
    with pytest.raises(
        PeakwardError, match="expected a module that gives a tensor of floats, got int"
    ):
        main_tensor(3)


def test_a_loss_is_one_number_that_asks_for_a_gradient():
    loss = torch.zeros(1, requires_grad=True)
    assert scalar(SimpleNamespace(loss=loss)).shape == ()
    for output, got in ((torch.zeros(2, 3), r"a tensor of \(2, 3\)"), (None, "NoneType")):
        with pytest.raises(PeakwardError, match=f"expected a loss of one element .*, got {got}"):
            scalar(output)
    with pytest.raises(
        PeakwardError, match="expected a loss that depends on a parameter that requires"
    ):
        scalar(torch.zeros(()))
