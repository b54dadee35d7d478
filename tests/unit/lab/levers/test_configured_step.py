"""The optimiser's set-up before a capture (captures themselves are tested on a GPU)."""

import pytest
import torch
from torch import nn

from peakward.lab.levers import configured_step
from peakward.lab.levers.configured_step import fingerprint, set_up
from peakward.levers.optimizer import LEARNING_RATE, adamw


@pytest.mark.parametrize("implementation", ["adamw-loop", "adamw-foreach", "adamw-fused"])
def test_set_up_makes_the_state_and_changes_nothing(implementation):
    torch.manual_seed(0)
    prepared, fresh = nn.Linear(8, 8), nn.Linear(8, 8)
    fresh.load_state_dict(prepared.state_dict())
    optimizers = [adamw(model, implementation, capturable=False) for model in (prepared, fresh)]
    for a, b in zip(prepared.parameters(), fresh.parameters(), strict=True):
        a.grad = torch.randn_like(a)
        b.grad = a.grad.clone()

    set_up(optimizers[0])

    for a, b in zip(prepared.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)
    states = list(optimizers[0].state.values())
    assert len(states) == 2
    assert all(not value.any() for state in states for value in state.values())
    assert optimizers[0].param_groups[0]["lr"] == LEARNING_RATE

    for _ in range(3):
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(prepared.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch):
    monkeypatch.setattr(configured_step, "_AT_ONCE", 7)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64]
)
def test_one_bit_of_one_value_shows(dtype):
    values = torch.randn(5, 6, dtype=dtype)
    other = values.clone()
    assert fingerprint(other) == fingerprint(values)
    other[3, 2] = -other[3, 2]
    assert fingerprint(other) != fingerprint(values)


def test_an_exchange_of_two_values_shows():
    values = torch.arange(30.0)
    other = values.clone()
    other[[8, 12]] = values[[12, 8]]
    assert fingerprint(other) != fingerprint(values)


def test_nan_and_infinities_are_counted_and_nan_is_itself():
    values = torch.zeros(30, dtype=torch.bfloat16)
    values[[0, 9, 29]] = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=torch.bfloat16)
    found = fingerprint(values)
    assert (found.n_values, found.n_nonfinite) == (30, 3)
    assert found == fingerprint(values.clone())


def test_any_layout_and_no_values_at_all():
    assert fingerprint(torch.randn(4, 6).t()).n_values == 24
    assert fingerprint(torch.empty(0)).sums == fingerprint(torch.empty(0, 3)).sums
