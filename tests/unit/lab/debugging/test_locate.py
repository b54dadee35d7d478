"""The operator that made a value, in tensors of every kind."""

import torch
from torch import nn

from peakward.lab.debugging.locate import fault_of, located
from peakward.lab.debugging.snapshot import TrainingState


def fault_in(step, model, batch=None):
    state = TrainingState(model, None)
    with located(state, batch) as locator:
        loss = step()
    return fault_of(locator, 0, {"the loss": loss, **state.tensors()})


class Counted(nn.Module):
    """Counts down in place, and takes the logarithm of what is left."""

    def __init__(self, left):
        super().__init__()
        self.register_buffer("left", left)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self):
        self.calls.add_(1)
        self.left.sub_(1)
        return self.left.abs().log().sum()


def test_an_operator_that_works_in_place_runs_once():
    for dtype in (torch.float64, torch.complex64, torch.complex128, torch.float32):
        model = Counted(torch.full((2,), 1.0, dtype=dtype))
        found = fault_in(model, model)
        assert (found.operator, found.module_type) == ("aten.log.default", "Counted"), dtype
        assert torch.equal(model.left, torch.zeros(2, dtype=dtype))
        assert int(model.calls) == 1


def test_a_value_is_followed_through_complex_numbers():
    class Rotated(nn.Module):
        def forward(self, x):
            turned = torch.view_as_complex(x) * torch.polar(torch.ones(3), torch.arange(3.0))
            return torch.view_as_real(turned.conj() * 2).sum()

    model = nn.ModuleDict({"rotated": Rotated()})
    found = fault_in(lambda: model["rotated"](torch.ones(3, 2) / torch.zeros(3, 1)), model)
    assert (found.operator, found.module) == ("aten.div.Tensor", "")


def test_a_value_that_begins_in_complex_numbers():
    model = nn.Identity()
    found = fault_in(
        lambda: torch.polar(torch.ones(3, 2), torch.zeros(3, 2)).div(0).abs().sum(), model
    )
    assert found.operator == "aten.div.Tensor"
    assert (found.output.dtype, found.output.n_nonfinite) == ("complex64", 6)


def test_gradients_of_an_embedding_that_are_sparse():
    model = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TrainingState(model, optimizer)
    with located(state, None) as locator:
        loss = (0 * model(torch.tensor([1, 4]))).sqrt().sum()
        loss.backward()
        optimizer.step()
    found = fault_of(locator, 0, state.tensors())
    assert (found.phase, found.derivative_of) == ("backward", "SqrtBackward0")
    assert found.reached == "parameter weight"


def test_a_loss_that_the_host_reads():
    class Divided(nn.Module):
        def forward(self, x):
            return (x / 0).sum()

    model = nn.ModuleDict({"divided": Divided()})
    fine = torch.ones(3)

    def step():
        total = fine.sum().item()
        total += model["divided"](fine).item()
        return total + torch.tensor(2.0).log().item()

    found = fault_in(step, model)
    assert (found.operator, found.module) == ("aten.div.Tensor", "divided")
    assert found.reached == "the loss"
